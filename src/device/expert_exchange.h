// Experts that ranks share while they sample. Each rank has all weights of a sparse model and rows of its own. In each
// layer every rank gets the rows of all ranks, computes the places of its own experts (experts_of_rank), and gets the
// results of its own rows back. So the ranks together read each expert's weights once, where each would read nearly all
// of them for its few rows. A place's row depends on its token's row and its expert's weights alone, and the row's
// owner adds up its places as ever: the bits are those of a rank by itself (docs/EXPERTS.md).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "device/communicator.h"
#include "device/experts.h"

namespace tandem::device {

class Ops;

// The sizes of what ranks share.
struct SharedExperts {
  int64_t experts = 0, chosen = 0;
  int64_t hidden = 0;         // E
  int64_t most_rows = 0;      // largest number of rows of one rank
  at::ScalarType dtype = {};  // dtype of the model
};

// Every rank makes the same calls in the same order, each with as many own rows R, from one thread. PeerLost where one
// does not; on a device that runs ahead it is thrown by the next call of the communicator.
class ExpertExchange {
 public:
  virtual ~ExpertExchange() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Returns the rows [size R, E] of all ranks, rank 0's first, given the own rows.
  virtual at::Tensor gather(const at::Tensor& own_RE) = 0;
  // Returns memory for y_PE, in which Ops::results_of_experts() puts the rows of this rank's experts, given what
  // gather() returned and its routing. It may be used until the next sum().
  virtual at::Tensor results(const at::Tensor& rows, const Routing& routing) = 0;
  // Returns Ops::sum_of_experts() of the own rows, with the routing's weights and the residual, whose dtype the sum
  // has. The routing is that of all rows, and each rank's y_PE has the rows of its own experts.
  virtual at::Tensor sum(const at::Tensor& y_PE, const Routing& routing, const at::Tensor& residual_RE) = 0;
};

// Returns an exchange over the devices' communicator, or over what it makes itself. Every rank calls it; `hosts`
// connects the hosts of the same ranks. All are borrowed. Throws EnvironmentError where devices that run ahead do not
// see each other's memory.
std::unique_ptr<ExpertExchange> make_expert_exchange(const Ops& ops, Communicator& ranks, Communicator& hosts,
                                                     const SharedExperts& shared);

}  // namespace tandem::device
