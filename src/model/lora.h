// Says which matrices have a LoRA adapter, and which tensors an adapter has. No torch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model/config.h"
#include "weights/layout.h"

namespace tandem::model {

// Returns the modules that can have an adapter, by the last part of their Hugging Face names: every matrix of a block
// but a router. The name of a matrix of experts stands for those of all experts, each of which gets an adapter.
std::vector<std::string> adaptable_modules(const ModelConfig& config);
// Stands for the matrices of every block, in flags and in adapter_config.json.
constexpr const char* kAllLinear = "all-linear";
// Returns the modules that it stands for: those, without the matrices of experts. The adapters of experts are
// most of a sparse model's, so they are only made where a run names their modules.
std::vector<std::string> all_linear_modules(const ModelConfig& config);

// Returns whether matrices of experts have an adapter.
bool adapts_experts(const ModelConfig& config);

// Returns the modules that `names` stand for, in the model's order: "all-linear" alone, or names, several of which may
// be one text with commas. UserError, which begins with `place`, for a name that the model does not have, or that is
// given twice.
std::vector<std::string> parse_target_modules(const std::vector<std::string>& names, const ModelConfig& config,
                                              const std::string& place);

// Returns the modules that can be trained whole next to an adapter (PEFT's modules_to_save), by the last part of their
// Hugging Face names: the embedding, the norms, and the head if it is not tied.
std::vector<std::string> savable_modules(const ModelConfig& config);
// Returns the modules of savable_modules() that `names` stand for, in the model's order; a name may be a text of
// several with commas. UserError, which begins with `place`, for a name that the model does not have, for one that is
// given twice, and for the head of a model that ties it.
std::vector<std::string> parse_saved_modules(const std::vector<std::string>& names, const ModelConfig& config,
                                             const std::string& place);

// An adapter's two matrices are named after the packed matrix that they are for, with these suffixes.
inline constexpr const char* kLoraA = ".lora_a";
inline constexpr const char* kLoraB = ".lora_b";

// Returns the adapter's tensors, for a configuration that has one: for each packed matrix with target modules the A of
// all of them, one below the other, and the B in the same order. Of a matrix of experts, A has the modules of one
// expert and then those of the next; B has one module of all experts and then the next module. After them come the
// modules that are trained whole, each under the packed name of the base's own tensor, in whose place it stands in
// WeightsView::with(). The Hugging Face names are PEFT's.
weights::Layout adapter_layout(const ModelConfig& config);
// Returns the tensors that are trained: those of the adapter where there is one, else the weights.
weights::Layout trained_layout(const ModelConfig& config);

// The columns of a packed matrix's result that belong to one target module. Those of a matrix of experts are columns of
// one expert's result, and the same for each.
struct AdapterWindow {
  int64_t begin = 0, count = 0;
};
// The map goes by packed name. A matrix without a target module is not in it, and without an adapter it is empty.
using AdapterWindows = std::map<std::string, std::vector<AdapterWindow>>;
AdapterWindows adapter_windows(const ModelConfig& config);

// One matrix that has an adapter, such as that of one expert, by the rows where it, its A and its B lie.
struct AdaptedMatrix {
  std::string packed_name;
  int64_t row = 0, num_rows = 0;  // in the packed matrix; B has as many
  int64_t a_row = 0, b_row = 0;   // in the packed tensors `packed_name` + kLoraA and + kLoraB; A has `rank` rows
};
std::vector<AdaptedMatrix> adapted_matrices(const ModelConfig& config);

}  // namespace tandem::model
