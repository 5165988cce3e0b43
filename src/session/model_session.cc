#include "session/model_session.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/log.h"
#include "model/lora.h"
#include "model/peft.h"
#include "model/registry.h"
#include "weights/checkpoint_files.h"
#include "weights/not_finite.h"

namespace tandem::session {

namespace {

// Throws UserError if one of these exists and is no regular file: the text worker opens them by itself, and a pipe
// would make it wait.
void check_text_files(const std::string& directory) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}) {
    const std::string path = fmt::format("{}/{}", directory, name);
    if (base::file_exists(path) || base::directory_exists(path)) base::ReadableFile{path};
  }
}

}  // namespace

ModelSession::ModelSession(const config::ModelOptions& options)
    : ModelSession(options, find_model(options.hf_checkpoint), read_model(options), std::nullopt) {}

ModelSession::ModelSession(const config::ModelOptions& options, const config::LoraOptions& lora,
                           const config::OptimizerOptions& optimizer, const std::optional<mesh::Group>& replica)
    : ModelSession(options, find_model(options.hf_checkpoint), read_model(options, lora, optimizer), replica) {}

ModelSession::ModelSession(const config::ModelOptions& options, ModelPlace place, model::ModelConfig config,
                           const std::optional<mesh::Group>& replica)
    : options_(options),
      place_(std::move(place)),
      replica_(replica),
      config_(replica ? model::shard_of(config, {.rank = replica->rank(), .size = replica->size()})
                      : std::move(config)),
      device_(device::parse_device(options.device)) {
  check_text_files(directory());
  text_ = std::make_unique<text::TextWorker>(worker::default_worker_config(), directory());
  TANDEM_USER_CHECK(
      text_->vocab_size() <= config_.vocab,
      fmt::format("{}/tokenizer.json: has ids up to {}, the model's vocabulary (vocab_size of config.json) "
                  "ends at {}; use the checkpoint's own tokenizer",
                  directory(), text_->vocab_size() - 1, config_.vocab - 1));
  warn_of_other_tokenizer();
  ops_ = device::make_ops(device_, {.isa = options_.cpu_isa, .num_threads = static_cast<int>(options_.num_threads)});
}

// Warns of a tokenizer that is most likely another model's: its size is half the vocabulary, or it does not have the
// model's EOS. Published vocabularies are padded by a few hundred ids only.
void ModelSession::warn_of_other_tokenizer() const {
  const std::string file = directory() + "/tokenizer.json";
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

weights::WeightStore ModelSession::empty_store() const {
  return weights::WeightStore::without_storage(model::build_layout(config_), dtype(), ops_->device());
}

weights::WeightStore ModelSession::empty_adapter() const {
  return weights::WeightStore::without_storage(model::adapter_layout(config_), dtype(), ops_->device());
}

void ModelSession::read_weights(weights::WeightStore& store) const {
  if (options_.random_init) {
    weights::initialize_random(store, config_.initializer_range, static_cast<uint64_t>(options_.seed),
                               /*first_stream=*/0, ops_->num_threads());
  } else {
    weights::load_hf_checkpoint(directory(), store, ops_->num_threads());
  }
}

void ModelSession::check_weights() const { session::check_weights(place_, config_, options_.random_init); }

void ModelSession::load_weights() {
  TANDEM_CHECK(!base_, "the weights are loaded already");
  base_ = std::make_unique<weights::WeightStore>(empty_store());
  read_weights(*base_);
  if (config_.lora) load_adapter();
  if (config_.eos_token_ids.empty()) {
    base::log_warning(
        "{}: no EOS token in config.json or generation_config.json: completions end at their length limit "
        "or at --rollout-stop only",
        directory());
  }
}

void ModelSession::allocate_weights() {
  TANDEM_CHECK(!base_, "the weights are loaded already");
  base_ = std::make_unique<weights::WeightStore>(empty_store());
  base_->allocate();
  if (!config_.lora) return;
  adapter_ = std::make_unique<weights::WeightStore>(empty_adapter());
  adapter_->allocate();
}

void ModelSession::load_adapter() {
  // These streams come after those of any model's weights, so that an adapter shares no numbers with them.
  constexpr uint64_t kFirstStream = uint64_t{1} << 32;
  adapter_ = std::make_unique<weights::WeightStore>(empty_adapter());
  if (place_.adapter.empty()) {
    weights::initialize_random(*adapter_, config_.initializer_range, static_cast<uint64_t>(options_.seed), kFirstStream,
                               ops_->num_threads());
    weights::copy_common(*base_, *adapter_);
  } else {
    weights::load_adapter(place_.adapter, *adapter_);
  }
}

weights::WeightsView ModelSession::view() const {
  TANDEM_CHECK(base_ != nullptr, "weights are not loaded");
  return adapter_ ? base_->view().with(adapter_->view()) : base_->view();
}

std::unique_ptr<model::Model> ModelSession::make_model(const model::ModelConfig& config,
                                                       const weights::WeightsView& view) const {
  return config.shard.is_whole() ? model::make_model(config, view, *ops_)
                                 : model::make_model(config, view, *ops_, replica_->device);
}

void ModelSession::export_trained(const std::string& path, device::Communicator& replica) const {
  const weights::ExportOptions options = {.source_directory = directory(), .overwrite = true};
  if (adapter_) {
    weights::export_adapter(path, *adapter_,
                            model::adapter_config_text(*config_.lora, directory(), config_.tied_embeddings), options);
  } else {
    weights::export_hf_checkpoint(path, *base_, options, replica);
  }
}

std::string ModelSession::describe_not_finite() const {
  std::string damaged = weights::describe_not_finite(*base_);
  return damaged.empty() && adapter_ ? weights::describe_not_finite(*adapter_) : damaged;
}

std::function<void()> ModelSession::check_of(device::Communicator& ranks) {
  return [&ranks] {
    const device::TensorLists nothing(static_cast<size_t>(ranks.size()));
    ranks.start_exchange(nothing, nothing)->wait();
  };
}

rollout::EngineConfig ModelSession::engine_config(const config::RolloutOptions& options, int64_t num_kv_blocks,
                                                  bool has_other_stops) {
  rollout::EngineConfig config;
  config.num_kv_blocks = num_kv_blocks;
  config.limits = options.limits;
  if (has_other_stops || !options.stop.empty()) config.token_bytes = text_->token_bytes();
  config.why_not_finite = [this] { return why_not_finite(); };
  // A device that runs ahead would compute with whatever is in its memory when another device is lost.
  if (replica_ && replica_->size() > 1 && ops_->runs_ahead()) {
    config.check_ranks = check_of(replica_->device);
  }
  return config;
}

std::string ModelSession::why_not_finite() const {
  if (adapter_ && weights::describe_not_finite(*base_).empty()) return weights::why_not_finite(*adapter_);
  return weights::why_not_finite(*base_);
}

}  // namespace tandem::session
