// The policy's reference: the frozen weights that a KL term compares with, on the device for good, or there only while
// they score (--offload-reference).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/model.h"
#include "run/model_session.h"
#include "run/run_memory.h"
#include "trainer/score.h"
#include "weights/offloaded_store.h"

namespace tandem::run {

// UserError unless `directory` holds a model of the session's shape, so that this is known before weights are read; ""
// is the session's own.
void check_reference(const ModelSession& session, const std::string& directory);

class Reference {
 public:
  // The weights of `directory`, in the session's shape and dtype, or for "" those that the session begins with.
  // UserError when the shapes differ. Borrows the session; tells the ledger what lasts.
  Reference(const ModelSession& session, const std::string& directory, bool is_offloaded, RunMemory& memory);

  // As trainer::score(). Weights that are offloaded are on the device for the call, and gone after it however it ends.
  trainer::Scores score(const std::vector<const rl::Sample*>& samples, const trainer::BatchConfig& batch,
                        double temperature);

 private:
  std::unique_ptr<weights::WeightStore> resident_;
  std::unique_ptr<device::HostMemory> host_memory_;
  std::optional<weights::OffloadedStore> offloaded_;
  std::unique_ptr<model::Model> model_;
};

}  // namespace tandem::run
