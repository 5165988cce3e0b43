// Samples completions by continuous batching over a paged KV cache. Groups go in, finished groups come out in the order
// in which they finish. A completion depends on its prompt, its sampling parameters, its sample id and the weights
// alone, not on what else was in flight, nor on how often it was paused and begun again.
//
// Single-threaded: every call, and the work of next_finished(), happens on the caller's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rl/sample.h"
#include "rollout/batch_limits.h"
#include "rollout/request.h"

namespace tandem::model {
class Model;
}
namespace tandem::weights {
class WeightsView;
}

namespace tandem::rollout {

class SharedSteps;

struct EngineConfig {
  // The KV cache has so many blocks (rollout/kv_layout.h): num_kv_blocks() of rollout/rollout_plan.h. A sequence of the
  // longest context must fit.
  int64_t num_kv_blocks = 4096;
  // Address of the blocks on the model's device, in memory of another owner, who may have it between rollouts. Null:
  // the engine allocates them.
  std::byte* kv_memory = nullptr;
  BatchLimits limits;
  // Number of steps, 0 or 1, that are queued on the device before the tokens of the previous one are read. Completions
  // have the same bits. Unset means 1 where Ops::runs_ahead(), where the host's work then costs no time of the device;
  // else 0, since a sequence that a token ends costs a row more.
  std::optional<int64_t> lookahead;
  // States whether decode steps are filled up to a few sizes, recorded once and replayed (Ops::record()). Unset means
  // where Ops::can_record() allows it.
  std::optional<bool> record_steps;
  // Maps a token id to its bytes, for stop strings; empty when no request has any.
  std::vector<std::string> token_bytes;
  // Called when logits are not finite. Returns the end of the error's line, which names the weight. Empty: nobody knows
  // it.
  std::function<std::string()> why_not_finite;
  // Called when the results of a step have come, before one is used. It throws if they mean nothing, because a rank
  // that holds a part of the model is gone. Empty: they always mean something.
  std::function<void()> check_ranks = {};
  // Shares experts with the engines of other ranks, which are asked with the same limits. It is borrowed. Null: this
  // engine computes by itself.
  SharedSteps* shared_steps = nullptr;
};

class Engine {
 public:
  virtual ~Engine() = default;

  // Queues a group; no group in flight has its id. Throws UserError when it cannot fit the context or the cache, has
  // tokens that the model does not know, begun tokens that leave no room for another, or parameters out of range.
  virtual void add(GroupRequest request) = 0;
  // Ends a group (or all groups): its tokens so far come out of next_finished() with reason kAbort. A group that has
  // ended already stays as it is.
  virtual void abort(uint64_t group_id) = 0;
  virtual void abort_all() = 0;
  // No other turn of this conversation comes; its kept KV cache is freed.
  virtual void release(uint64_t sample_id) = 0;
  // Call it only while no group is in flight. The KV cache that is kept for conversations is dropped, and so are
  // recorded steps if the weights have another address.
  virtual void update_weights(const weights::WeightsView& view) = 0;
  // Works until a group is finished and returns it, or nullopt when nothing is left. Throws EnvironmentError when the
  // model's logits are not finite.
  virtual std::optional<rl::Group> next_finished() = 0;
  // Queues one forward and reads the tokens of the one `lookahead` before it. Returns false when nothing was left to
  // do. It is for callers that interleave. When the last group has finished, the device holds nothing but the cache.
  virtual bool step() = 0;

  // Returns whether other engines wait for this one's step(), also where it has nothing to do itself: until
  // leave_shared_steps().
  virtual bool shares_steps() const { return false; }
  // Makes steps for the engines of the other ranks until all have called it. Call it at the end of a rollout, while no
  // group is in flight.
  virtual void leave_shared_steps() {}

  virtual int64_t num_unfinished_groups() const = 0;
  // Returns whether a group that is added now begins soon: with the next forward, as far as is known. True when idle.
  virtual bool has_room() const = 0;
  virtual EngineStats stats() const = 0;
  virtual void reset_stats() = 0;
};

// The model is borrowed and outlives the engine.
std::unique_ptr<Engine> make_engine(const EngineConfig& config, model::Model& model);

}  // namespace tandem::rollout
