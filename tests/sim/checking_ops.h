// Ops that check whether each forward operation is a function of its rows. An exact operation, given the same row (and
// weight, position, keys) twice, answers with the same bits, whoever asks: engine or trainer, in any batch. This
// decorator remembers every answer; the first operation that contradicts itself is the one that broke exactness.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "device/ops.h"

namespace tandem::sim {

// Shared by the decorators of several Ops, so that engine and trainer are checked against each other.
class RowLedger {
 public:
  // `question` names the operation and everything that its result may depend on; `answer` is the result's bytes.
  void record(const std::string& operation, uint64_t question, uint64_t answer);
  // Returns the first operation whose answers differ; empty: all agree.
  const std::string& broken_operation() const { return broken_; }
  int64_t num_answers() const { return num_answers_; }
  int64_t num_repeated() const { return num_repeated_; }  // questions asked more than once

 private:
  std::unordered_map<uint64_t, uint64_t> answers_;
  std::string broken_;
  int64_t num_answers_ = 0, num_repeated_ = 0;
};

// Forwards to `inner` (borrowed, as the ledger) and records the forward operations. Understands the KV layout of the
// CPU backend, so that attention is asked about keys and values by position.
std::unique_ptr<device::Ops> make_checking_ops(const device::Ops& inner, RowLedger& ledger);

}  // namespace tandem::sim
