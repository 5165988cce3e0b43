#include "model/lora.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string_view>

#include "base/check.h"
#include "model/config_reader.h"
#include "model/registry.h"

namespace tandem::model {

namespace {

using weights::Layout;
using weights::PackedTensor;
using weights::Slice;

constexpr std::string_view kWeight = ".weight";
constexpr const char* kAllLinear = "all-linear";

// Returns "q_proj" for "model.layers.0.self_attn.q_proj.weight".
std::string module_of(const Slice& slice) {
  const std::string name = slice.hf_name.substr(0, slice.hf_name.size() - kWeight.size());
  return name.substr(name.rfind('.') + 1);
}

std::vector<const Slice*> targets_of(const PackedTensor& packed, const LoraConfig& lora) {
  std::vector<const Slice*> targets;
  if (!packed.takes_adapter) return targets;
  for (const Slice& slice : packed.slices) {
    if (std::ranges::find(lora.target_modules, module_of(slice)) != lora.target_modules.end())
      targets.push_back(&slice);
  }
  return targets;
}

// Returns one of an adapter's two matrices, for all target modules of a packed matrix.
PackedTensor stacked(const std::string& name, const std::vector<const Slice*>& targets, const char* suffix,
                     weights::Init init, const std::function<std::vector<int64_t>(const Slice&)>& shape_of) {
  PackedTensor packed{.name = name, .shape = {0, shape_of(*targets.front())[1]}, .slices = {}, .init = init};
  for (const Slice* target : targets) {
    const std::string module = target->hf_name.substr(0, target->hf_name.size() - kWeight.size());
    packed.slices.push_back({.hf_name = fmt::format("base_model.model.{}.{}.weight", module, suffix),
                             .shape = shape_of(*target),
                             .row_begin = packed.shape[0]});
    packed.shape[0] += packed.slices.back().shape[0];
  }
  return packed;
}

// Returns the parts between commas. "" has one part, which is empty.
std::vector<std::string> names_in(const std::string& text) {
  std::vector<std::string> names(1);
  for (const char c : text) {
    if (c == ',') {
      names.emplace_back();
    } else {
      names.back() += c;
    }
  }
  return names;
}

}  // namespace

std::vector<std::string> adaptable_modules(const ModelConfig& config) {
  ModelConfig one_layer = config;
  one_layer.num_layers = 1;
  std::vector<std::string> modules;
  for (const PackedTensor& packed : build_layout(one_layer).tensors) {
    if (!packed.takes_adapter) continue;
    for (const Slice& slice : packed.slices) modules.push_back(module_of(slice));
  }
  return modules;
}

std::vector<std::string> parse_target_modules(const std::vector<std::string>& names, const ModelConfig& config,
                                              const std::string& place) {
  std::vector<std::string> modules = adaptable_modules(config);
  if (names == std::vector<std::string>{kAllLinear}) return modules;
  std::set<std::string> given;
  for (const std::string& text : names) {
    for (const std::string& name : names_in(text)) {
      TANDEM_USER_CHECK(
          std::ranges::find(modules, name) != modules.end(),
          fmt::format("{}: {} is no module of this model; give {}, or some of {} with commas between them", place,
                      ConfigReader::shown(name), kAllLinear, fmt::join(modules, ",")));
      TANDEM_USER_CHECK(given.insert(name).second,
                        fmt::format("{}: {} is named twice; leave one out", place, ConfigReader::shown(name)));
    }
  }
  std::erase_if(modules, [&](const std::string& module) { return !given.contains(module); });
  return modules;
}

Layout adapter_layout(const ModelConfig& config) {
  TANDEM_CHECK(config.lora.has_value(), "the configuration has no adapter");
  const int64_t rank = config.lora->rank;
  Layout layout;
  for (const PackedTensor& packed : build_layout(config).tensors) {
    const std::vector<const Slice*> targets = targets_of(packed, *config.lora);
    if (targets.empty()) continue;
    layout.tensors.push_back(
        stacked(packed.name + kLoraA, targets, "lora_A", weights::Init::kUniform, [&](const Slice& w) {
          return std::vector{rank, w.shape[1]};
        }));
    layout.tensors.push_back(
        stacked(packed.name + kLoraB, targets, "lora_B", weights::Init::kZeros, [&](const Slice& w) {
          return std::vector{w.shape[0], rank};
        }));
  }
  return layout;
}

Layout trained_layout(const ModelConfig& config) { return config.lora ? adapter_layout(config) : build_layout(config); }

AdapterWindows adapter_windows(const ModelConfig& config) {
  AdapterWindows windows;
  if (!config.lora) return windows;
  for (const PackedTensor& packed : build_layout(config).tensors) {
    for (const Slice* target : targets_of(packed, *config.lora)) {
      windows[packed.name].push_back({.begin = target->row_begin, .count = target->shape[0]});
    }
  }
  return windows;
}

}  // namespace tandem::model
