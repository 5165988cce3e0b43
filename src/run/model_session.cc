#include "run/model_session.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"
#include "base/log.h"
#include "model/registry.h"
#include "run/read_model.h"
#include "weights/checkpoint_files.h"
#include "weights/not_finite.h"

namespace tandem::run {

namespace {

// The text worker opens these files by itself, and a pipe would have it wait.
void check_text_files(const std::string& directory) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}) {
    const std::string path = fmt::format("{}/{}", directory, name);
    if (base::file_exists(path) || base::directory_exists(path)) base::ReadableFile{path};
  }
}

}  // namespace

ModelSession::ModelSession(const config::ModelOptions& options)
    : options_(options), config_(read_model(options)), device_(device::parse_device(options.device)) {
  check_text_files(options_.hf_checkpoint);
  text_ = std::make_unique<text::TextWorker>(text::default_worker_config(), options_.hf_checkpoint);
  TANDEM_USER_CHECK(
      text_->vocab_size() <= config_.vocab,
      fmt::format("{}/tokenizer.json: has ids up to {}, the model's vocabulary (vocab_size of config.json) "
                  "ends at {}; use the checkpoint's own tokenizer",
                  options_.hf_checkpoint, text_->vocab_size() - 1, config_.vocab - 1));
  warn_of_other_tokenizer();
  ops_ = device::make_ops(device_, {.isa = options_.cpu_isa, .num_threads = static_cast<int>(options_.num_threads)});
}

// Published vocabularies are padded by a few hundred ids; a tokenizer of half the size, or without the model's EOS, is
// most likely another model's.
void ModelSession::warn_of_other_tokenizer() const {
  const std::string file = options_.hf_checkpoint + "/tokenizer.json";
  const int64_t num_ids = text_->vocab_size();
  for (const int32_t eos : config_.eos_token_ids) {
    if (eos < num_ids) continue;
    base::log_warning("{}: has no token {}, the model's EOS (its ids end at {}): is it another model's?", file, eos,
                      num_ids - 1);
    return;
  }
  if (2 * num_ids < config_.vocab) {
    base::log_warning("{}: has {} ids where the model's vocabulary has {}: is it another model's?", file, num_ids,
                      config_.vocab);
  }
}

int64_t ModelSession::weight_bytes() const { return config_.num_parameters() * model::dtype_bytes(config_.dtype); }

weights::WeightStore ModelSession::empty_store() const {
  return weights::WeightStore::without_storage(model::build_layout(config_), dtype(), ops_->device());
}

void ModelSession::read_weights(weights::WeightStore& store) const {
  if (options_.random_init) {
    weights::initialize_random(store, config_.initializer_range, static_cast<uint64_t>(options_.seed));
  } else {
    weights::load_hf_checkpoint(options_.hf_checkpoint, store);
  }
}

void ModelSession::check_weights() const {
  if (!options_.random_init) weights::check_hf_checkpoint(options_.hf_checkpoint, model::build_layout(config_));
}

void ModelSession::load_weights() {
  TANDEM_CHECK(!store_, "the weights are loaded already");
  store_ = std::make_unique<weights::WeightStore>(empty_store());
  read_weights(*store_);
  if (config_.eos_token_ids.empty()) {
    base::log_warning(
        "{}: no EOS token in config.json or generation_config.json: completions end at their length limit "
        "or at --rollout-stop only",
        options_.hf_checkpoint);
  }
}

std::unique_ptr<model::Model> ModelSession::make_model() const {
  TANDEM_CHECK(store_ != nullptr, "weights are not loaded");
  return model::make_model(config_, store_->view(), *ops_);
}

rollout::EngineConfig ModelSession::engine_config(const config::RolloutOptions& options, int64_t num_kv_blocks) {
  rollout::EngineConfig config;
  config.num_kv_blocks = num_kv_blocks;
  config.limits = options.limits;
  if (!options.stop.empty()) config.token_bytes = text_->token_bytes();
  config.why_not_finite = [this] { return why_not_finite(); };
  return config;
}

std::string ModelSession::why_not_finite() const { return weights::why_not_finite(*store_); }

}  // namespace tandem::run
