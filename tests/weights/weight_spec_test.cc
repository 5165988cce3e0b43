// The description of the weights comes from their layout: names, shapes, dtype, order and their hash.
#include "weights/weight_spec.h"

#include <gtest/gtest.h>

#include <set>

#include "base/checksum.h"
#include "tandem/error.h"
#include "tests/weights/small_layout.h"

namespace tandem::weights {
namespace {

Layout two_tensors() {
  Layout layout;
  layout.tensors = {
      {.name = "qk", .shape = {5, 3}, .slices = {{.hf_name = "q", .shape = {4, 3}}, {.hf_name = "k", .shape = {1, 3}}}},
      {.name = "n", .shape = {7}, .slices = {{.hf_name = "norm", .shape = {7}}}}};
  return layout;
}

TEST(WeightSpec, ListsHuggingFaceTensorsInLayoutOrder) {
  const WeightSpec info = weight_spec(two_tensors(), "BF16");
  EXPECT_EQ(info.dtype, "BF16");
  ASSERT_EQ(info.tensors.size(), 3U);
  EXPECT_EQ(info.tensors[0], (WeightSpec::Tensor{.hf_name = "q", .shape = {4, 3}}));
  EXPECT_EQ(info.tensors[1], (WeightSpec::Tensor{.hf_name = "k", .shape = {1, 3}}));
  EXPECT_EQ(info.tensors[2], (WeightSpec::Tensor{.hf_name = "norm", .shape = {7}}));
  // This is the text that weight_spec.h promises, so that any program can compute the hash.
  EXPECT_EQ(info.hash, base::checksum("BF16\n1:q 4,3\n1:k 1,3\n4:norm 7\n"));
}

TEST(WeightSpec, EveryChangeIsAnotherHash) {
  std::set<std::string> hashes = {weight_spec(two_tensors(), "BF16").hash};
  const auto expect_new = [&](const char* what, const Layout& layout, const char* dtype) {
    EXPECT_TRUE(hashes.insert(weight_spec(layout, dtype).hash).second) << what;
  };
  expect_new("dtype", two_tensors(), "F32");
  Layout layout = two_tensors();
  layout.tensors[0].slices[0].hf_name = "Q";
  expect_new("name", layout, "BF16");
  layout = two_tensors();
  layout.tensors[0].slices[0].shape = {3, 4};
  expect_new("shape", layout, "BF16");
  layout = two_tensors();
  layout.tensors[1].slices[0].shape = {7, 1};
  expect_new("number of dims", layout, "BF16");
  layout = two_tensors();
  std::swap(layout.tensors[0].slices[0], layout.tensors[0].slices[1]);
  expect_new("order of slices", layout, "BF16");
  layout = two_tensors();
  std::swap(layout.tensors[0], layout.tensors[1]);
  expect_new("order of packed tensors", layout, "BF16");
  layout = two_tensors();
  layout.tensors.pop_back();
  expect_new("one less", layout, "BF16");
  layout.tensors[0].slices.pop_back();
  layout.tensors[0].slices[0].hf_name = "q 4,3\n1:k";
  layout.tensors[0].slices[0].shape = {1, 3};
  expect_new("a name that looks like two lines", layout, "BF16");
}

TEST(WeightSpec, HowTensorsArePackedIsNobodysBusiness) {
  Layout apart;
  for (const PackedTensor& packed : two_tensors().tensors) {
    for (const Slice& slice : packed.slices) {
      apart.tensors.push_back({.name = slice.hf_name, .shape = slice.shape, .slices = {slice}});
    }
  }
  EXPECT_EQ(weight_spec(apart, "F32"), weight_spec(two_tensors(), "F32"));
}

TEST(WeightSpec, ComesFromAConfigurationAlone) {
  const WeightSpec tied = weight_spec(small_layout(/*tied=*/true), "F32");
  const WeightSpec untied = weight_spec(small_layout(/*tied=*/false), "F32");
  EXPECT_EQ(tied, weight_spec(small_layout(/*tied=*/true), "F32"));
  EXPECT_EQ(untied.tensors.size(), tied.tensors.size() + 1);
  EXPECT_NE(untied.hash, tied.hash);
  EXPECT_EQ(tied.tensors.front().hf_name, "model.embed_tokens.weight");
  EXPECT_EQ(untied.tensors.back().hf_name, "lm_head.weight");
  EXPECT_THROW(weight_spec(small_layout(), "F16"), BugError);
}

}  // namespace
}  // namespace tandem::weights
