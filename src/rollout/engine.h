// The rollout engine: continuous batching over paged KV. Groups go in, finished groups come out in the order in which
// they finish; what a completion contains depends on its prompt, its sampling parameters, its sample id and the weights
// alone, not on what else was in flight.
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

struct EngineConfig {
  // Of the KV cache, each of device::kBlockTokens tokens: num_kv_blocks() of rollout/rollout_plan.h. A sequence of the
  // longest context must fit.
  int64_t num_kv_blocks = 4096;
  // Where they lie, on the model's device: somebody else's, who may have it between rollouts. Null: the engine's own.
  std::byte* kv_memory = nullptr;
  BatchLimits limits;
  // Steps that are queued on the device before the tokens of the one before them are read: 0 or 1. Completions are the
  // same bits. Unset: 1 where Ops::runs_ahead(), where the host's work then costs no time of the device; else 0, since
  // a sequence that a token ends costs a row more.
  std::optional<int64_t> lookahead;
  // Whether decode steps are filled up to a few sizes, recorded once and replayed (Ops::record()). Unset: as above.
  std::optional<bool> record_steps;
  // token id -> bytes, for stop strings; empty when no request has any
  std::vector<std::string> token_bytes;
  // Asked when logits are not finite: the end of the error's line, which names the weight. Empty: nobody knows.
  std::function<std::string()> why_not_finite;
  // Called when the results of a step have come, before one is used: throws where they mean nothing, since a rank that
  // holds a part of the model is gone. Empty: they always mean something.
  std::function<void()> check_ranks = {};
};

class Engine {
 public:
  virtual ~Engine() = default;

  // Queues a group; its id is that of no other group in flight. UserError when it cannot fit the context or the cache,
  // has tokens that the model does not know, or parameters out of range.
  virtual void add(GroupRequest request) = 0;
  // Ends a group (all groups): what it has so far comes out of next_finished() with reason kAbort. A group that has
  // ended already stays as it is.
  virtual void abort(uint64_t group_id) = 0;
  virtual void abort_all() = 0;
  // No other turn of this conversation comes.
  virtual void release(uint64_t sample_id) = 0;
  // Between forwards: no work happens until resume(), and nothing of a step is held on the device. kDropKv gives all
  // blocks back; running sequences re-prefill.
  virtual void pause(PauseMode mode) = 0;
  // Only while paused, or idle. What is kept for conversations is forgotten. Recorded steps are dropped where the
  // weights lie elsewhere. With kept KV the caller accepts tokens of mixed versions; spans record them.
  virtual void update_weights(const weights::WeightsView& view) = 0;
  virtual void resume() = 0;
  // Works until a group is finished and returns it; nullopt when nothing is left (or paused). EnvironmentError when
  // the model's logits are not finite.
  virtual std::optional<rl::Group> next_finished() = 0;
  // Queues one forward and reads the tokens of the one that lies `lookahead` before it; false when nothing was left to
  // do. For callers that interleave. When the last group has finished, nothing is held on the device but the cache.
  virtual bool step() = 0;

  // Between forwards: moves live KV to the low end of the cache; returns the bytes from its start that are then in use.
  virtual int64_t compact_kv() = 0;

  virtual int64_t num_unfinished_groups() const = 0;
  // Whether a group that is added now begins soon: with the next forward, as far as is known. True when idle.
  virtual bool has_room() const = 0;
  virtual EngineStats stats() const = 0;
  virtual void reset_stats() = 0;
};

// Model is borrowed and outlives the engine.
std::unique_ptr<Engine> make_engine(const EngineConfig& config, model::Model& model);

}  // namespace tandem::rollout
