// A model that is spread over tensor ranks: each rank's store is its part of the whole, however it was filled.
#include <gtest/gtest.h>

#include <set>

#include "base/json.h"
#include "tests/base/thrown.h"
#include "tests/model/model_parts.h"
#include "tests/pretend_device/pretend_device.h"
#include "tests/weights/file_bytes.h"
#include "tests/weights/starting_states.h"
#include "weights/not_finite.h"

namespace tandem::weights {
namespace {

// Writes the same tensors as two files and their index.
void write_shards(const std::string& directory, const HfTensors& tensors) {
  std::vector<HfTensors> shards(2);
  base::Json weight_map;
  for (const auto& [name, tensor] : tensors) {
    const size_t shard = weight_map.size() % 2;
    shards[shard].emplace(name, tensor);
    weight_map[name] = "model-" + std::to_string(shard) + ".safetensors";
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    write_tensors(directory + "/model-" + std::to_string(i) + ".safetensors", shards[i]);
  }
  write_bytes(directory + "/model.safetensors.index.json", base::Json{{"weight_map", weight_map}}.dump());
}

class ModelParts : public testing::TestWithParam<std::string> {};

TEST_P(ModelParts, FilesFillEachRankWithItsBoxes) {
  for (const bool tied : {true, false}) {
    const model::ModelConfig config = model::divisible_config(GetParam(), tied);
    for (const at::ScalarType from : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const HfTensors tensors = some_tensors(model::build_layout(config), from);
      const TemporaryDirectory directory;
      (tied ? write_directory : write_shards)(directory.path(), tensors);
      for (const at::ScalarType to : {at::kFloat, at::kBFloat16}) {
        WeightStore whole(model::build_layout(config), to);
        load_hf_checkpoint(directory.path(), whole);
        for (const int num_ranks : {2, 3, 4}) {
          for (const Layout& layout : model::part_layouts(config, num_ranks)) {
            WeightStore part(layout, to);
            load_hf_checkpoint(directory.path(), part);
            model::expect_part_of(part, whole);
          }
        }
      }
    }
  }
}

TEST_P(ModelParts, RandomWeightsAreTheSameModel) {
  const model::ModelConfig config = model::divisible_config(GetParam(), /*tied=*/false);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    WeightStore whole(model::build_layout(config), dtype);
    initialize_random(whole, 0.2, 7);
    for (const int num_ranks : {2, 3, 4}) {
      for (const Layout& layout : model::part_layouts(config, num_ranks)) {
        WeightStore part(layout, dtype);
        initialize_random(part, 0.2, 7);
        model::expect_part_of(part, whole);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ModelParts, testing::ValuesIn(model::kShardableArchitectures),
                         [](const auto& info) { return info.param; });

// A uniform tensor's bound comes from the columns of the whole, and a slice's numbers from its place among the others.
TEST(InitializeRandom, ABoxHasTheNumbersOfTheWholeTensor) {
  const auto layout_of = [](std::vector<int64_t> shape, std::vector<int64_t> begin, std::vector<int64_t> whole) {
    Slice first{.hf_name = "a", .shape = shape, .begin = begin, .whole_shape = whole}, second = first;
    second.hf_name = "b";
    second.row_begin = shape[0];
    Layout layout;
    layout.tensors = {
        {.name = "w", .shape = {2 * shape[0], shape[1]}, .slices = {first, second}, .init = Init::kUniform}};
    return layout;
  };
  WeightStore whole(layout_of({300, 77}, {}, {}), at::kFloat);
  initialize_random(whole, 0.2, 3);
  EXPECT_LE(whole.tensor("w").abs().max().item<float>(), 1.0F / std::sqrt(77.0F));
  for (const auto& [shape, begin] : {std::pair<std::vector<int64_t>, std::vector<int64_t>>{{300, 30}, {0, 41}},
                                     {{7, 77}, {293, 0}},
                                     {{151, 1}, {9, 76}}}) {
    WeightStore part(layout_of(shape, begin, {300, 77}), at::kFloat);
    initialize_random(part, 0.2, 3);
    model::expect_part_of(part, whole);
  }
}

TEST(ModelParts, OnADeviceAreFilledLikeThoseOfTheHost) {
  pretend_device::reset(int64_t{1} << 20);
  const model::ModelConfig config = model::divisible_config("Qwen2ForCausalLM", /*tied=*/false);
  const HfTensors tensors = some_tensors(model::build_layout(config), at::kHalf);
  const TemporaryDirectory directory;
  write_directory(directory.path(), tensors);
  WeightStore whole(model::build_layout(config), at::kBFloat16), drawn(whole.layout(), at::kBFloat16);
  load_hf_checkpoint(directory.path(), whole);
  initialize_random(drawn, 0.2, 7);
  for (const Layout& layout : model::part_layouts(config, 2)) {
    WeightStore part(layout, at::kBFloat16, pretend_device::device());
    load_hf_checkpoint(directory.path(), part);
    model::expect_part_of(part, whole);
    initialize_random(part, 0.2, 7);
    model::expect_part_of(part, drawn);
  }
}

TEST(ModelParts, RefuseTensorsOfAnotherModelByTheWholeShape) {
  const model::ModelConfig config = model::divisible_config("Qwen3ForCausalLM", /*tied=*/true);
  const Layout part = model::part_layouts(config, 2)[1];
  // The tensors of a part are not whole.
  const HfTensors tensors = some_tensors(part, at::kFloat);
  const TemporaryDirectory directory;
  write_directory(directory.path(), tensors);
  WeightStore store(part, at::kFloat);
  const std::string message = base::refusal_of([&] { load_hf_checkpoint(directory.path(), store); });
  EXPECT_NE(message.find("has shape [36, 10], config.json asks for [71, 10]"), std::string::npos) << message;
}

TEST(ModelParts, NameADamagedWeightByItsPlaceInTheWhole) {
  const model::ModelConfig config = model::divisible_config("Qwen2ForCausalLM", /*tied=*/true);
  WeightStore part(model::part_layouts(config, 3)[2], at::kFloat);
  initialize_random(part, 0.2, 7);
  part.tensor("layers.0.down")[4][5] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(describe_not_finite(part),
            "model.layers.0.mlp.down_proj.weight holds an infinity (the first at row 4, column 29)");
  part.tensor("layers.0.qkv_bias")[17] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(describe_not_finite(part), "model.layers.0.self_attn.k_proj.bias holds NaN (the first at element 17)");
}

}  // namespace
}  // namespace tandem::weights
