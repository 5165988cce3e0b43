#include "session/read_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/files.h"
#include "base/hub_name.h"
#include "device/backends.h"
#include "model/config_reader.h"
#include "model/lora.h"
#include "model/peft.h"
#include "model/registry.h"
#include "weights/checkpoint_files.h"

namespace tandem::session {

namespace {

// The remedy for a checkpoint whose weights are quantised in its files.
constexpr const char* kUnquantised = "name the checkpoint that it was made from";

model::ModelConfig read_base(const std::string& directory, const config::ModelOptions& options) {
  model::ModelConfig config = model::read_model_config(directory);
  take_dtype(config, options);
  return config;
}

}  // namespace

void check_bf16(const config::ModelOptions& options) {
  const model::ModelConfig config = read_model(options);
  TANDEM_USER_CHECK(
      config.dtype == model::Dtype::kBFloat16,
      fmt::format("--bf16: the model computes in {}, {}; give --dtype bfloat16 in its place", config.dtype_name(),
                  options.dtype == "auto" ? "the dtype of --hf-checkpoint" : "as --dtype says"));
}

void check_model_directory(const std::string& flag, const std::string& directory) {
  base::check_directory(directory, flag,
                        "name a Hugging Face model directory" + base::hub_remedy(directory, base::HubKind::kModel));
  TANDEM_USER_CHECK(
      !model::is_adapter_directory(directory),
      fmt::format("{}: is an adapter, and a model is needed here: write the merged one with tandem export", flag));
}

void check_weights(const ModelPlace& place, const model::ModelConfig& config, bool random_init) {
  if (!random_init) weights::check_hf_checkpoint(place.directory, model::build_layout(config));
  if (!place.adapter.empty())
    weights::check_hf_checkpoint(place.adapter, model::adapter_layout(config), weights::kAdapterFile);
}

void take_dtype(model::ModelConfig& config, const config::ModelOptions& options) {
  std::string dtype = options.dtype;
  const bool is_stored = config.file_quantisation != device::Quantisation::kNone && !options.random_init;
  if (is_stored) {
    const char* const stored = model::to_string(config.file_quantisation);
    TANDEM_USER_CHECK(dtype == "auto" || dtype == stored,
                      fmt::format("--dtype {}: the weights of {} are {}; give --dtype {}, or {}", dtype,
                                  options.hf_checkpoint, stored, stored, kUnquantised));
    dtype = stored;
  }
  if (dtype == "float32") config.dtype = model::Dtype::kFloat32;
  if (dtype == "bfloat16") config.dtype = model::Dtype::kBFloat16;
  if (dtype != "nf4" && dtype != "int8") return;
  const std::string remedy = is_stored ? kUnquantised : "give --dtype bfloat16";
  TANDEM_USER_CHECK(device::footprint_of(options.device).has_quantised,
                    fmt::format("--dtype {}: --device {} does not compute with quantised matrices yet; give --device "
                                "cpu, or {}",
                                dtype, options.device, remedy));
  config.dtype = model::Dtype::kBFloat16;
  config.quantisation = dtype == "nf4" ? device::Quantisation::kNf4 : device::Quantisation::kInt8;
}

ModelPlace find_model(const std::string& hf_checkpoint) {
  base::check_directory(hf_checkpoint, "--hf-checkpoint " + hf_checkpoint,
                        "name a folder with config.json, model.safetensors and tokenizer.json" +
                            base::hub_remedy(hf_checkpoint, base::HubKind::kModel));
  if (!model::is_adapter_directory(hf_checkpoint)) return {.directory = hf_checkpoint};
  const std::string base = model::read_adapter_config(hf_checkpoint).base;
  TANDEM_USER_CHECK(
      base::directory_exists(base) && !model::is_adapter_directory(base),
      fmt::format("{}/adapter_config.json: base_model_name_or_path: {} is no directory of a model; "
                  "correct it there, or start where it leads to one{}",
                  hf_checkpoint, model::ConfigReader::shown(base), base::hub_remedy(base, base::HubKind::kModel)));
  return {.directory = base, .adapter = hf_checkpoint};
}

model::ModelConfig read_model(const config::ModelOptions& options) {
  const ModelPlace place = find_model(options.hf_checkpoint);
  model::ModelConfig config = read_base(place.directory, options);
  if (place.adapter.empty()) return config;
  const model::AdapterFile file = model::read_adapter_config(place.adapter);
  const auto saves = [&](const char* module) {
    return std::ranges::find(file.modules_to_save, module) != file.modules_to_save.end();
  };
  TANDEM_USER_CHECK(
      !config.tied_embeddings || file.ensures_weight_tying || (!saves("embed_tokens") && !saves("lm_head")),
      fmt::format("{}/adapter_config.json: modules_to_save: its embedding and head are two, which {} ties; "
                  "only an adapter that PEFT made with ensure_weight_tying is read",
                  place.adapter, place.directory));
  config.lora = {.rank = file.rank,
                 .alpha = file.alpha,
                 .target_modules = model::parse_target_modules(file.target_modules, config,
                                                               place.adapter + "/adapter_config.json: target_modules"),
                 .is_rank_stabilized = file.use_rslora,
                 .saved_modules = model::parse_saved_modules(file.modules_to_save, config,
                                                             place.adapter + "/adapter_config.json: modules_to_save"),
                 .dropout = file.dropout};
  return config;
}

namespace {

// Returns the adapter that a run goes on to train, which is in the model's configuration. Throws UserError if the flags
// ask for another one.
model::LoraConfig begun_adapter(const config::ModelOptions& options, const config::LoraOptions& lora) {
  const model::ModelConfig config = read_model(options);
  model::LoraConfig begun = *config.lora;
  const std::string adapter =
      fmt::format("--hf-checkpoint {}: is an adapter of rank {}", options.hf_checkpoint, begun.rank);
  TANDEM_USER_CHECK(lora.rank, fmt::format("{}; give --lora-rank {} to train it on, or write the merged model with "
                                           "tandem export to train all weights",
                                           adapter, begun.rank));
  const auto same = [&](bool is_same, const std::string& flag, const std::string& has) {
    TANDEM_USER_CHECK(is_same,
                      fmt::format("{}: {} is trained on with {}; leave the flag out, or begin a new adapter on "
                                  "the merged model",
                                  flag, options.hf_checkpoint, has));
  };
  TANDEM_USER_CHECK(*lora.rank == begun.rank,
                    fmt::format("--lora-rank {}: {} is trained on with its rank {}; give --lora-rank {}, or begin a "
                                "new adapter on the merged model",
                                *lora.rank, options.hf_checkpoint, begun.rank, begun.rank));
  same(lora.alpha.value_or(begun.alpha) == begun.alpha, fmt::format("--lora-alpha {}", lora.alpha.value_or(0.0)),
       fmt::format("its alpha {}", begun.alpha));
  same(!lora.use_rslora || begun.is_rank_stabilized, "--use-rslora", "its scale of alpha over the rank");
  const bool has_targets =
      lora.target_modules.empty() ||
      model::parse_target_modules(lora.target_modules, config, "--target-modules") == begun.target_modules;
  same(has_targets, "--target-modules", fmt::format("its modules {}", fmt::join(begun.target_modules, ",")));
  const bool saves_same =
      lora.modules_to_save.empty() ||
      model::parse_saved_modules(lora.modules_to_save, config, "--modules-to-save") == begun.saved_modules;
  same(saves_same, "--modules-to-save",
       begun.saved_modules.empty() ? "no whole modules"
                                   : fmt::format("its whole modules {}", fmt::join(begun.saved_modules, ",")));
  begun.dropout = lora.dropout.value_or(begun.dropout);
  return begun;
}

// UserError where the adapter's dropout is not computed.
void check_dropout(const config::ModelOptions& options, const model::ModelConfig& config) {
  if (!config.lora || config.lora->dropout == 0.0) return;
  const std::string flag = fmt::format("--lora-dropout {}", config.lora->dropout);
  TANDEM_USER_CHECK(device::footprint_of(options.device).has_dropout,
                    fmt::format("{}: --device {} does not compute dropout yet; give --lora-dropout 0 or --device cpu",
                                flag, options.device));
  TANDEM_USER_CHECK(
      !model::adapts_experts(config),
      fmt::format("{}: the adapters of experts have no dropout; give --lora-dropout 0, or --target-modules "
                  "without gate_proj, up_proj and down_proj",
                  flag));
}

}  // namespace

model::ModelConfig read_model(const config::ModelOptions& options, const config::LoraOptions& lora,
                              const config::OptimizerOptions& optimizer) {
  model::ModelConfig config = read_base(find_model(options.hf_checkpoint).directory, options);
  if (optimizer.freeze_moe_router) {
    TANDEM_USER_CHECK(config.experts, fmt::format("--freeze-moe-router: {} is of {}, which has no router; leave it out",
                                                  options.hf_checkpoint, config.architecture));
    config.experts->router_is_frozen = true;
  }
  TANDEM_USER_CHECK(config.experts || !optimizer.router.logs_layers,
                    fmt::format("--moe-per-layer-logging: {} is of {}, which has no router; leave it out",
                                options.hf_checkpoint, config.architecture));
  if (optimizer.router.balances()) {
    const std::string flag = fmt::format("--moe-aux-loss-coeff {}", optimizer.router.aux_loss_coeff);
    TANDEM_USER_CHECK(config.experts, fmt::format("{}: {} is of {}, which has no router; leave it out", flag,
                                                  options.hf_checkpoint, config.architecture));
    TANDEM_USER_CHECK(
        !lora.rank, fmt::format("{}: balances routers, which --lora-rank does not train; leave one of them out", flag));
  }
  if (model::is_adapter_directory(options.hf_checkpoint)) {
    config.lora = begun_adapter(options, lora);
    check_dropout(options, config);
    return config;
  }
  TANDEM_USER_CHECK(lora.rank || !config.is_quantised(),
                    fmt::format("--dtype {}: quantised weights are not trained; give --lora-rank to train an adapter "
                                "over them, or {}",
                                config.dtype_name(), options.dtype == "auto" ? kUnquantised : "give --dtype bfloat16"));
  if (!lora.rank) return config;
  // Above this rank B A is no smaller than the matrix that it is added to.
  TANDEM_USER_CHECK(
      *lora.rank <= config.hidden,
      fmt::format("--lora-rank {}: is above the model's hidden size {}; 8 to 64 are usual", *lora.rank, config.hidden));
  const std::vector<std::string> all = {"all-linear"};
  config.lora = {.rank = *lora.rank,
                 .alpha = lora.alpha.value_or(config::kDefaultLoraAlpha),
                 .target_modules = model::parse_target_modules(lora.target_modules.empty() ? all : lora.target_modules,
                                                               config, "--target-modules"),
                 .is_rank_stabilized = lora.use_rslora,
                 .saved_modules = model::parse_saved_modules(lora.modules_to_save, config, "--modules-to-save"),
                 .dropout = lora.dropout.value_or(0.0)};
  check_dropout(options, config);
  return config;
}

void check_stop_tokens(const config::RolloutOptions& options, const model::ModelConfig& config) {
  for (const int64_t id : options.stop_token_ids) {
    TANDEM_USER_CHECK(id >= 0 && id < config.vocab,
                      fmt::format("--rollout-stop-token-ids {}: the model has no such token, its ids are 0 to {}", id,
                                  config.vocab - 1));
  }
}

}  // namespace tandem::session
