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

constexpr std::string_view kWeight = ".weight", kEmbeddingModule = "embed_tokens", kHeadModule = "lm_head";

// Returns "q_proj" for "model.layers.0.self_attn.q_proj.weight": a part of the slice's own name.
std::string_view module_of(const Slice& slice) {
  const std::string_view name = std::string_view(slice.hf_name).substr(0, slice.hf_name.size() - kWeight.size());
  return name.substr(name.rfind('.') + 1);
}

// Hugging Face has the matrices of expert 3 under ".experts.3.".
bool is_of_experts(const PackedTensor& packed) {
  return packed.slices.front().hf_name.find(".experts.") != std::string::npos;
}

// Returns the modules of a layer that can have an adapter, in those packed matrices that `counts` holds for.
std::vector<std::string> modules_of(const ModelConfig& config, const std::function<bool(const PackedTensor&)>& counts) {
  ModelConfig one_layer = config;
  one_layer.num_layers = 1;
  std::vector<std::string> modules;
  for (const PackedTensor& packed : build_layout(one_layer).tensors) {
    if (!packed.takes_adapter || !counts(packed)) continue;
    for (const Slice& slice : packed.slices) {
      const std::string_view module = module_of(slice);
      if (std::ranges::find(modules, module) == modules.end()) modules.emplace_back(module);
    }
  }
  return modules;
}

// Returns whether a module can be trained whole. A router cannot: it is the only matrix of a block without an adapter.
bool is_savable(const PackedTensor& packed) {
  const bool is_module =
      !packed.takes_adapter && packed.slices.size() == 1 && packed.slices.front().hf_name.ends_with(kWeight);
  const bool is_router = packed.decays && packed.name.starts_with("layers.");
  return is_module && !is_router;
}

// Returns whether a module is trained whole. As in PEFT a name stands for every module whose own ends with it: "norm"
// is all norms.
bool is_saved(const PackedTensor& packed, const LoraConfig& lora) {
  return is_savable(packed) && std::ranges::any_of(lora.saved_modules, [&](const std::string& name) {
           return module_of(packed.slices.front()).ends_with(name);
         });
}

// Returns the matrices of target modules that lie in a packed one, in the order of their rows.
std::vector<const Slice*> targets_of(const PackedTensor& packed, const LoraConfig& lora) {
  std::vector<const Slice*> targets;
  if (!packed.takes_adapter) return targets;
  for (const Slice& slice : packed.slices) {
    if (std::ranges::find(lora.target_modules, module_of(slice)) != lora.target_modules.end())
      targets.push_back(&slice);
  }
  return targets;
}

// Returns the same matrices by module: one where the matrix is dense, else that of each expert, in the order of their
// rows. The modules are in the order of their first rows.
std::vector<std::vector<const Slice*>> by_module(const std::vector<const Slice*>& targets) {
  std::vector<std::vector<const Slice*>> modules;
  for (const Slice* target : targets) {
    const auto found = std::ranges::find(modules, module_of(*target),
                                         [](const auto& of_module) { return module_of(*of_module.front()); });
    if (found == modules.end()) {
      modules.push_back({target});
    } else {
      found->push_back(target);
    }
  }
  return modules;
}

// Returns the order in which B has the matrices: one module after the other.
std::vector<const Slice*> order_of_b(const std::vector<const Slice*>& targets) {
  std::vector<const Slice*> ordered;
  for (const auto& of_module : by_module(targets)) ordered.insert(ordered.end(), of_module.begin(), of_module.end());
  return ordered;
}

// PEFT's files have the names of the model's own modules after this.
constexpr const char* kPeftPrefix = "base_model.model.";

// Returns the name in PEFT's files of A, "lora_A", or B of a matrix.
std::string peft_name(const Slice& target, const char* suffix) {
  const std::string module = target.hf_name.substr(0, target.hf_name.size() - kWeight.size());
  return fmt::format("{}{}.{}.weight", kPeftPrefix, module, suffix);
}

// Returns one of an adapter's two matrices, for all target modules of a packed matrix.
PackedTensor stacked(const std::string& name, const std::vector<const Slice*>& targets, const char* suffix,
                     weights::Init init, const std::function<std::vector<int64_t>(const Slice&)>& shape_of) {
  PackedTensor packed{.name = name, .shape = {0, shape_of(*targets.front())[1]}, .slices = {}, .init = init};
  for (const Slice* target : targets) {
    packed.slices.push_back(
        {.hf_name = peft_name(*target, suffix), .shape = shape_of(*target), .row_begin = packed.shape[0]});
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

// Returns those of `modules` that are named, in their order. `instead` says what to give for a name that is not there.
std::vector<std::string> parse_names(const std::vector<std::string>& names, std::vector<std::string> modules,
                                     const std::string& place, const std::string& instead) {
  std::set<std::string> given;
  for (const std::string& text : names) {
    for (const std::string& name : names_in(text)) {
      TANDEM_USER_CHECK(std::ranges::find(modules, name) != modules.end(),
                        fmt::format("{}: {} is no module of this model; give {}{} with commas between them", place,
                                    ConfigReader::shown(name), instead, fmt::join(modules, ",")));
      TANDEM_USER_CHECK(given.insert(name).second,
                        fmt::format("{}: {} is named twice; leave one out", place, ConfigReader::shown(name)));
    }
  }
  std::erase_if(modules, [&](const std::string& module) { return !given.contains(module); });
  return modules;
}

}  // namespace

std::vector<std::string> adaptable_modules(const ModelConfig& config) {
  return modules_of(config, [](const PackedTensor&) { return true; });
}

std::vector<std::string> all_linear_modules(const ModelConfig& config) {
  return modules_of(config, [](const PackedTensor& packed) { return !is_of_experts(packed); });
}

bool adapts_experts(const ModelConfig& config) {
  ModelConfig one_layer = config;
  one_layer.num_layers = 1;
  return config.lora && std::ranges::any_of(build_layout(one_layer).tensors, [&](const PackedTensor& packed) {
           return is_of_experts(packed) && !targets_of(packed, *config.lora).empty();
         });
}

std::vector<std::string> parse_target_modules(const std::vector<std::string>& names, const ModelConfig& config,
                                              const std::string& place) {
  if (names == std::vector<std::string>{kAllLinear}) return all_linear_modules(config);
  return parse_names(names, adaptable_modules(config), place, fmt::format("{}, or some of ", kAllLinear));
}

std::vector<std::string> savable_modules(const ModelConfig& config) {
  ModelConfig one_layer = config;
  one_layer.num_layers = 1;
  std::vector<std::string> modules;
  for (const PackedTensor& packed : build_layout(one_layer).tensors) {
    if (is_savable(packed)) modules.emplace_back(module_of(packed.slices.front()));
  }
  return modules;
}

std::vector<std::string> parse_saved_modules(const std::vector<std::string>& names, const ModelConfig& config,
                                             const std::string& place) {
  for (const std::string& text : names) {
    const std::vector<std::string> parts = names_in(text);
    TANDEM_USER_CHECK(!config.tied_embeddings || std::ranges::find(parts, kHeadModule) == parts.end(),
                      fmt::format("{}: lm_head is this model's embed_tokens (tie_word_embeddings); name embed_tokens "
                                  "alone, which trains both",
                                  place));
  }
  return parse_names(names, savable_modules(config), place, "some of ");
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
        stacked(packed.name + kLoraB, order_of_b(targets), "lora_B", weights::Init::kZeros, [&](const Slice& w) {
          return std::vector{w.shape[0], rank};
        }));
  }
  for (PackedTensor& packed : build_layout(config).tensors) {
    if (!is_saved(packed, *config.lora)) continue;
    Slice& slice = packed.slices.front();
    // PEFT writes the values of a tied embedding twice, and does not load a file that has them once.
    if (config.tied_embeddings && module_of(slice) == kEmbeddingModule) {
      slice.twin = fmt::format("{}{}{}", kPeftPrefix, kHeadModule, kWeight);
      layout.ignored.push_back(slice.twin);
    }
    slice.hf_name.insert(0, kPeftPrefix);
    layout.tensors.push_back(std::move(packed));
  }
  return layout;
}

Layout trained_layout(const ModelConfig& config) { return config.lora ? adapter_layout(config) : build_layout(config); }

AdapterWindows adapter_windows(const ModelConfig& config) {
  AdapterWindows windows;
  if (!config.lora) return windows;
  for (const PackedTensor& packed : build_layout(config).tensors) {
    for (const auto& of_module : by_module(targets_of(packed, *config.lora))) {
      // The first matrix is that of the first expert, whose rows are the first.
      const Slice& first = *of_module.front();
      windows[packed.name].push_back({.begin = first.row_begin, .count = first.shape[0]});
    }
  }
  return windows;
}

std::vector<AdaptedMatrix> adapted_matrices(const ModelConfig& config) {
  std::vector<AdaptedMatrix> matrices;
  if (!config.lora) return matrices;
  for (const PackedTensor& packed : build_layout(config).tensors) {
    const std::vector<const Slice*> targets = targets_of(packed, *config.lora);
    std::map<const Slice*, int64_t> b_rows;
    int64_t a_row = 0, b_row = 0;
    for (const Slice* target : order_of_b(targets)) {
      b_rows[target] = b_row;
      b_row += target->shape[0];
    }
    for (const Slice* target : targets) {
      matrices.push_back({.packed_name = packed.name,
                          .row = target->row_begin,
                          .num_rows = target->shape[0],
                          .a_row = a_row,
                          .b_row = b_rows.at(target)});
      a_row += config.lora->rank;
    }
  }
  return matrices;
}

}  // namespace tandem::model
