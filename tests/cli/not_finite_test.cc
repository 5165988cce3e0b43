// Checks that a model with a damaged weight gives no numbers: score, eval and generate end with exit code 3 and the
// tensor's name, whichever tensor it is, whatever the instruction set. Before, a NaN in q_proj, k_proj or q_norm gave
// log-probs that looked like any others.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>

#include "device/ops.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

// Returns a copy of the golden model in which an element of a float32 tensor is changed; if `element` is negative, all
// of its elements.
std::string damaged_model(const base::TemporaryDirectory& folder, const std::string& tensor, int64_t element,
                          float value) {
  const std::string directory = folder / "model";
  base::make_directories(directory);
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}) {
    base::write_file_durably(directory + "/" + name, base::read_file(kModel + "/" + name));
  }
  std::string bytes = base::read_file(kModel + "/model.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  const base::Json offsets = base::parse_json(bytes.substr(8, header), "header").at(tensor).at("data_offsets");
  const auto begin = 8 + header + offsets[0].get<size_t>(), end = 8 + header + offsets[1].get<size_t>();
  for (size_t at = begin, i = 0; at < end; at += sizeof value, ++i) {
    if (element < 0 || i == static_cast<size_t>(element)) std::memcpy(&bytes[at], &value, sizeof value);
  }
  base::write_file_durably(directory + "/model.safetensors", bytes);
  return directory;
}

Arguments arguments_of(const std::string& verb, const std::string& model, const base::TemporaryDirectory& folder) {
  if (verb == "score") return {"score", "--hf-checkpoint", model, "--prompt-data", folder / "sequences.jsonl"};
  const Arguments lengths = {"--hf-checkpoint", model, "--rollout-max-response-len", "2", "--output", folder / "out"};
  Arguments arguments = {verb};
  arguments.insert(arguments.end(), lengths.begin(), lengths.end());
  if (verb == "eval") {
    arguments.insert(arguments.end(), {"--eval-prompt-data", "set", kPrompts + "@[0:1]", "--rm-type", "exact"});
  } else {
    arguments.insert(arguments.end(), {"--prompt-data", kPrompts + "@[0:1]"});
  }
  return arguments;
}

// Returns flags for the instruction sets that this machine runs, in both dtypes.
std::vector<Arguments> kernels() {
  std::string names = device::available_cpu_isas();
  std::replace(names.begin(), names.end(), ',', ' ');
  std::istringstream words(names);
  std::vector<Arguments> result;
  for (std::string name; words >> name;) {
    for (const char* dtype : {"float32", "bfloat16"}) result.push_back({"--cpu-isa", name, "--dtype", dtype});
  }
  return result;
}

TEST(NotFinite, EveryVerbNamesTheDamagedTensor) {
  base::TemporaryDirectory folder;
  base::write_file_durably(folder / "sequences.jsonl", "{\"tokens\": [5, 9, 200, 31, 7, 80]}\n");
  const std::vector<Arguments> all_kernels = kernels();
  size_t number = 0;
  for (const auto& [tensor, element, place] :
       {std::tuple{"model.layers.0.self_attn.q_proj.weight", 64 * 3 + 5, "row 3, column 5"},
        std::tuple{"model.layers.0.self_attn.k_proj.weight", 64 * 3 + 5, "row 3, column 5"},
        std::tuple{"model.layers.1.self_attn.q_norm.weight", 4, "element 4"},
        std::tuple{"model.layers.0.self_attn.v_proj.weight", 1, "row 0, column 1"},
        std::tuple{"model.layers.2.self_attn.o_proj.weight", 0, "row 0, column 0"},
        std::tuple{"model.layers.0.mlp.up_proj.weight", 63, "row 0, column 63"},
        std::tuple{"model.layers.0.input_layernorm.weight", 63, "element 63"},
        std::tuple{"model.embed_tokens.weight", 64 * 450, "row 450, column 0"}}) {
    for (const char* verb : {"score", "eval", "generate"}) {
      const float value = number % 2 == 0 ? kNaN : kInf;
      const std::string model = damaged_model(folder, tensor, element, value);
      const std::string says = fmt::format("not finite: {} holds {} (the first at {})", tensor,
                                           std::isnan(value) ? "NaN" : "an infinity", place);
      SCOPED_TRACE(fmt::format("{} {}", verb, says));
      Arguments arguments = arguments_of(verb, model, folder);
      const Arguments& kernel = all_kernels[number++ % all_kernels.size()];
      arguments.insert(arguments.end(), kernel.begin(), kernel.end());
      expect_one_line_failure(run(arguments), 3, says);
      EXPECT_TRUE(!base::file_exists(folder / "out") || base::read_file(folder / "out").empty());
    }
  }
}

TEST(NotFinite, WhereAllWeightsAreFiniteThePassOverflowed) {
  base::TemporaryDirectory folder;
  base::write_file_durably(folder / "sequences.jsonl", "{\"tokens\": [5, 9, 200, 31]}\n");
  const std::string model = damaged_model(folder, "model.norm.weight", -1, 3e38F);
  for (const char* verb : {"score", "eval", "generate"}) {
    expect_one_line_failure(run(arguments_of(verb, model, folder)), 3,
                            "not finite: all weights are finite, so the forward pass overflowed");
  }
}

TEST(NotFinite, TrainingNamesTheDamagedTensor) {
  base::TemporaryDirectory folder;
  const std::string model = damaged_model(folder, "model.layers.1.self_attn.k_norm.weight", 2, kNaN);
  base::write_file_durably(folder / "data.jsonl", "{\"prompt\": \"a\", \"response\": \"b\"}\n");
  const std::string says = "model.layers.1.self_attn.k_norm.weight holds NaN (the first at element 2)";
  Arguments sft = {"sft", "--hf-checkpoint", model, "--prompt-data", folder / "data.jsonl"};
  sft.insert(sft.end(), {"--save", folder / "sft", "--no-use-tensorboard", "--num-rollout", "2"});
  sft.insert(sft.end(), {"--global-batch-size", "1", "--max-skipped-steps", "1"});
  expect_one_line_failure(run(sft), 2, "it had loss nan, gradient norm nan; " + says);
  expect_one_line_failure(run(with_flag(train_arguments(folder / "run"), "--hf-checkpoint", model)), 3, says);
}

// A hinge once learnt nothing from such a reference, and said that all was well.
TEST(NotFinite, AReferenceNamesTheDamagedTensor) {
  base::TemporaryDirectory folder;
  const std::string model = damaged_model(folder, "model.layers.1.self_attn.k_norm.weight", 2, kNaN);
  const std::string why =
      "gives log-probs as the reference that are not finite: model.layers.1.self_attn.k_norm.weight holds NaN";
  const std::string says = "--ref-load " + model + ": " + why;
  const std::string pairs = "tests/golden/preferences/pairs.jsonl";
  const Arguments sft = {"sft",    "--hf-checkpoint", kModel, "--prompt-data",       pairs, "--preference-loss",
                         "hinge",  "--num-rollout",   "1",    "--global-batch-size", "2",   "--no-use-tensorboard",
                         "--save", folder / "sft"};
  expect_one_line_failure(run(with_flag(sft, "--ref-load", model)), 3, says);
  expect_one_line_failure(run(with_flag(sft, "--hf-checkpoint", model)), 3, "--hf-checkpoint " + model + ": " + why);
  for (const Arguments& more :
       {Arguments{"--overwrite", "--kl-coef", "0.1"}, {"--overwrite", "--use-kl-loss", "--kl-loss-coef", "0.1"}}) {
    const Arguments words = with_flag(train_arguments(folder / "run", more), "--ref-load", model);
    expect_one_line_failure(run(words), 3, says);
    expect_one_line_failure(run(with_flag(words, "--lora-rank", "4")), 3, says);
  }
}

}  // namespace
}  // namespace tandem::cli
