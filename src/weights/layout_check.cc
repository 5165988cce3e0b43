#include "weights/layout_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/check.h"
#include "weights/safetensors.h"

namespace tandem::weights {
namespace {

using Offers = std::map<std::string, OfferedTensor>;

bool is_loadable(const std::string& dtype) { return dtype == "F32" || dtype == "BF16" || dtype == "F16"; }

void check_tensor(const Slice& slice, const OfferedTensor& offered) {
  const std::string place = offered.place + ": tensor " + quoted_name(slice.hf_name);
  TANDEM_USER_CHECK(offered.shape == slice.hf_shape(),
                    fmt::format("{} has shape [{}], config.json asks for [{}]; check that both belong to one model",
                                place, fmt::join(offered.shape, ", "), fmt::join(slice.hf_shape(), ", ")));
  TANDEM_USER_CHECK(is_loadable(offered.dtype),
                    fmt::format("{} has dtype {}; only F32, BF16 and F16 weights are read: take an unquantised "
                                "checkpoint",
                                place, offered.dtype));
}

// Returns "tensor "x" and 3 more".
std::string shown_names(const std::vector<std::string>& names) {
  std::string text = "tensor " + quoted_name(names.front());
  if (names.size() > 1) text += fmt::format(" and {} more", names.size() - 1);
  return text;
}

void refuse_missing(const std::vector<std::string>& missing, const std::string& place) {
  if (missing.empty()) return;
  const bool only_head = missing.size() == 1 && missing.front() == "lm_head.weight";
  const char* remedy = only_head ? "if it is shared with the embedding, set tie_word_embeddings to true in config.json"
                                 : "check that config.json belongs to them, or take them from their source again";
  throw UserError(fmt::format("{}: the weights lack {}; {}", place, shown_names(missing), remedy));
}

void refuse_extra(const Offers& offered, const Layout& layout, const std::set<std::string>& wanted) {
  std::vector<std::string> extra;
  for (const auto& [name, tensor] : offered) {
    const bool ignored = std::find(layout.ignored.begin(), layout.ignored.end(), name) != layout.ignored.end();
    if (!ignored && !wanted.contains(name)) extra.push_back(name);
  }
  if (extra.empty()) return;
  throw UserError(
      fmt::format("{}: {} is not part of the model that config.json describes; check that both belong "
                  "together",
                  offered.at(extra.front()).place, shown_names(extra)));
}

}  // namespace

void check_offered(const Offers& offered, const Layout& layout, const std::string& place) {
  std::vector<std::string> missing;
  std::set<std::string> wanted;
  for (const PackedTensor& packed : layout.tensors) {
    for (const Slice& slice : packed.slices) {
      TANDEM_CHECK(wanted.insert(slice.hf_name).second, "two slices of", slice.hf_name);
      if (!offered.contains(slice.hf_name)) missing.push_back(slice.hf_name);
    }
  }
  refuse_missing(missing, place);
  refuse_extra(offered, layout, wanted);
  for (const PackedTensor& packed : layout.tensors) {
    for (const Slice& slice : packed.slices) check_tensor(slice, offered.at(slice.hf_name));
  }
}

}  // namespace tandem::weights
