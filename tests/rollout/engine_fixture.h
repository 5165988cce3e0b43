// Shared by the engine's tests: a small random model over its own weights, requests, and functions that run them to the
// end.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/ops.h"
#include "model/model.h"
#include "rollout/engine.h"
#include "tests/model/test_model.h"
#include "weights/store.h"

namespace tandem::rollout {

inline const device::Ops& test_ops(int num_threads = 1) { return model::test_ops(num_threads); }
using model::TestModel;

// The model has 64 tokens of vocabulary, context 256, EOS 1, and logits about as wide apart as a trained model's.
TestModel make_small_model(at::ScalarType dtype, int num_threads = 1,
                           const std::string& architecture = "Qwen3ForCausalLM", int64_t num_layers = 2);

// Returns the blocks that hold so many tokens if nothing is given up.
int64_t num_blocks_for(const model::ModelConfig& config, int64_t tokens);

rl::SharedPrompt random_prompt(uint32_t seed, int64_t length);
// Returns the request of a group with a random prompt of that length, whose completions all have `max_new_tokens`.
GroupRequest request_of(uint64_t group_id, int64_t prompt_tokens, int64_t num_samples, int64_t max_new_tokens);

// Runs until nothing is left. Returns the groups by id.
std::map<uint64_t, rl::Group> finish_all(Engine& engine);
// Runs one group alone in an engine of its own.
rl::Group run_alone(model::Model& model, const GroupRequest& request, const EngineConfig& config = {});

// Returns the log-probs of a completion, from one forward over prompt and completion.
std::vector<float> score(model::Model& model, const std::vector<int32_t>& prompt,
                         const std::vector<int32_t>& completion, double temperature);

// Expects the same bits: tokens, log-probs of both kinds, reason.
void expect_same_completion(const rl::Completion& a, const rl::Completion& b);
void expect_same_group(const rl::Group& a, const rl::Group& b);

}  // namespace tandem::rollout
