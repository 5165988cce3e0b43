// A run whose memory is planned exactly, and the comparison of the plan with what was taken.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "tests/base/temporary_directory.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {

constexpr int64_t kMiB = int64_t{1} << 20;
// Rounding takes so much, and so do the indices of keys in the last block of each sequence, which the plan takes for
// full.
constexpr int64_t kSmallTensors = 24576;

// Writes a model with the golden model's tokenizer and a shape of any family whose tensors are large next to what
// rounding adds.
inline std::string write_model(const base::TemporaryDirectory& folder, const std::string& architecture) {
  const std::string path = folder / architecture;
  base::make_directories(path);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"})
    base::write_file_durably(path + "/" + name, base::read_file(kModel + "/" + name));
  base::Json config = base::read_json_file(kModel + "/config.json");
  config["hidden_size"] = 192;
  config["intermediate_size"] = 512;
  config["num_hidden_layers"] = 4;
  config["initializer_range"] = 0.02;
  config.update(
      {{"num_experts", 8}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 256}});  // of a sparse family
  config["architectures"] = {architecture};
  config.erase("attention_bias");  // each family has its own
  base::write_file_durably(path + "/config.json", config.dump());
  return path;
}

// Writes prompts of one length, so that every micro-batch is as long as the longest.
inline std::string write_prompts(const base::TemporaryDirectory& folder) {
  std::string text;
  for (int i = 0; i < 16; ++i)
    text += R"({"prompt": [{"role": "user", "content": "one two three four five six"}], "label": "8"})"
            "\n";
  base::write_file_durably(folder / "prompts.jsonl", text);
  return folder / "prompts.jsonl";
}

inline Arguments memory_arguments(const base::TemporaryDirectory& folder, const std::string& save,
                                  const Arguments& more, const std::string& architecture = "Qwen3ForCausalLM") {
  Arguments words = with_custom_reward(train_arguments(save), write_reward(folder));
  words = with_flag(with_flag(words, "--hf-checkpoint", write_model(folder, architecture)), "--prompt-data",
                    write_prompts(folder));
  for (const auto& [flag, value] :
       {std::pair{"--rollout-max-response-len", "24"}, {"--rollout-batch-size", "4"}, {"--global-batch-size", "8"}})
    words = with_flag(words, flag, value);
  for (const char* word :
       {"--random-init", "--kv-cache-bytes", "2000000", "--rollout-max-batch-tokens", "64", "--num-threads", "1"})
    words.emplace_back(word);
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

inline base::Json last_step(const std::string& run_path) {
  base::Json last;
  for (base::Json& line : json_lines(run_path + "/memory_timeline.jsonl"))
    if (line["event"] == "step") last = std::move(line);
  return last;
}

inline int64_t bytes(const base::Json& of_phase, const char* which, const std::string& tag) {
  const base::Json& tags = of_phase[which];
  return tags.contains(tag) ? tags[tag].get<int64_t>() : 0;
}

// Expects every tag in these phases to be near the plan and never above it. `step` is a line of RunMemory::timeline().
// `is_bound` tells that the plan is only a bound, because it cannot know the batches so well.
inline void expect_phases_as_planned(const base::Json& step, const std::vector<std::string>& phases,
                                     const std::string& which, bool is_bound) {
  for (const std::string& phase : phases) {
    const base::Json& of_phase = step["phases"][phase];
    std::map<std::string, int> tags;
    for (const char* column : {"most", "planned"})
      for (const auto& [tag, bytes] : of_phase[column].items()) tags[tag] = 1;
    for (const auto& [tag, one] : tags) {
      const int64_t most = bytes(of_phase, "most", tag), planned = bytes(of_phase, "planned", tag);
      std::printf("%s %-8s %-14s %10ld of %10ld\n", which.c_str(), phase.c_str(), tag.c_str(), most, planned);
      // A sanitizer's own memory is none of ours.
      if (tag == "overhead") continue;
      EXPECT_LE(most, planned) << which << ", " << tag << " in " << phase;
      const bool is_host = tag == "staging" && phase != "train";  // memory for reading files
      EXPECT_LE(planned - most, is_bound || is_host ? 64 * kMiB : std::max<int64_t>(planned / 50, kSmallTensors))
          << which << ", " << tag << " in " << phase;
    }
    // The memory of a sanitizer would hide the sum, so overhead is left out.
    EXPECT_LE(of_phase["most_at_once"].get<int64_t>() - bytes(of_phase, "most", "overhead"),
              of_phase["planned_at_once"].get<int64_t>() - bytes(of_phase, "planned", "overhead"))
        << which << ", all tags in " << phase;
  }
}

}  // namespace tandem::cli
