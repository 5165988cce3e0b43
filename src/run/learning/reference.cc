#include "run/learning/reference.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "base/check.h"
#include "checkpoint/resume.h"
#include "model/lora.h"
#include "model/registry.h"
#include "session/read_reference.h"
#include "weights/checkpoint_files.h"
#include "weights/not_finite.h"

namespace tandem::run {

namespace {

constexpr int64_t kPieceElements = int64_t{1} << 16;

// Holds up to kPieceElements numbers of a tensor in its dtype, float32 or bfloat16, on the host. Copies keep the
// dtype, so they take no memory of a device.
class Piece {
 public:
  Piece(at::ScalarType dtype, int64_t size)
      : numbers_(at::from_blob(buffer_.data(), {size}, at::TensorOptions(dtype))) {}
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;

  int64_t size() const { return numbers_.numel(); }
  void read(const at::Tensor& from, int64_t first) { numbers_.copy_(from.view({-1}).narrow(0, first, size())); }
  void write(const at::Tensor& to, int64_t first) const { to.view({-1}).narrow(0, first, size()).copy_(numbers_); }
  void to_floats(float* floats) const {
    if (numbers_.scalar_type() == at::kFloat) {
      std::copy_n(numbers_.const_data_ptr<float>(), size(), floats);
    } else {
      std::copy_n(numbers_.const_data_ptr<at::BFloat16>(), size(), floats);
    }
  }
  // Rounds to nearest, to even.
  void from_floats(const float* floats) {
    if (numbers_.scalar_type() == at::kFloat) {
      std::copy_n(floats, size(), numbers_.mutable_data_ptr<float>());
    } else {
      std::copy_n(floats, size(), numbers_.mutable_data_ptr<at::BFloat16>());
    }
  }

 private:
  std::vector<float> buffer_ = std::vector<float>(kPieceElements);
  at::Tensor numbers_;
};

// Calls f(name of the packed tensor, first element, a piece of the store's dtype) for all elements of a store.
template <typename F>
void for_each_piece(const weights::WeightStore& store, F f) {
  for (const weights::PackedTensor& packed : store.layout().tensors) {
    const int64_t num_elements = store.tensor(packed.name).numel();
    for (int64_t first = 0; first < num_elements; first += kPieceElements) {
      Piece piece(store.dtype(), std::min(kPieceElements, num_elements - first));
      f(packed.name, first, piece);
    }
  }
}

}  // namespace

void check_reference(const session::ModelSession& session, const std::string& directory, bool follows_policy) {
  if (directory.empty()) return;
  session::read_reference(directory, session.config());
  weights::check_hf_checkpoint(directory, model::build_layout(model::read_model_config(directory)));
  session::check_reference_shape(directory, session.config());
  if (follows_policy) session::check_reference_forward(directory, session.config());
}

void refuse_reference(const session::ModelSession& session, const std::string& directory,
                      const std::string& why_not_finite) {
  throw EnvironmentError(fmt::format(
      "{}: gives log-probs as the reference that are not finite: {}",
      directory.empty() ? "--hf-checkpoint " + session.directory() : "--ref-load " + directory, why_not_finite));
}

Reference::Reference(const session::ModelSession& session, const Options& options,
                     const std::optional<checkpoint::Checkpoint>& checkpoint, session::RunMemory& memory)
    : session_(session), directory_(options.directory), mixup_alpha_(options.mixup_alpha) {
  if (checkpoint) step_ = checkpoint::read_state(*checkpoint).reference_step;
  model::ModelConfig config = session.config();
  if (config.lora && options.directory.empty()) {
    // A reference that followed the policy once is in the checkpoint, whether it goes on following it or not.
    begin_at_base(options.follows_policy || step_ > 0, checkpoint, memory);
  } else {
    // Weights that are the policy's by now compute as the policy does.
    if (!options.directory.empty() && step_ == 0) config = session::read_reference(options.directory, config);
    config.lora.reset();
    config.shard.sequence_parallel = options.sequence_parallel;
    model_.emplace(
        session, config, options.is_offloaded,
        [&](weights::WeightStore& store) { fill(options.directory, checkpoint, store); }, memory);
  }
  if (!options.follows_policy || !keeps_average(model_->home())) return;
  if (!average_) {
    average_.emplace(model_->home().layout(), at::kFloat);
    for_each_piece(model_->home(), [&](const std::string& name, int64_t first, Piece& own) {
      own.read(model_->home().tensor(name), first);
      own.to_floats(average_->tensor(name).mutable_data_ptr<float>() + first);
    });
  }
  if (session.ops().is_on_host()) memory.add_persistent(memory::Tag::kReference, average_->bytes());
}

void Reference::begin_at_base(bool has_adapter, const std::optional<checkpoint::Checkpoint>& checkpoint,
                              session::RunMemory& memory) {
  model::ModelConfig config = session_.config();
  if (!has_adapter) {
    config.lora.reset();
    model_.emplace(session_, config, session_.base().view());
    return;
  }
  auto adapter = std::make_unique<weights::WeightStore>(session_.empty_adapter());
  adapter->allocate();
  if (step_ > 0) {
    restore(*checkpoint, *adapter);
  } else {
    // The policy's own A is there for an average to begin with. With B at 0 the adapter adds nothing to the base, of
    // which it has the modules that are trained whole.
    weights::copy_common(session_.trained(), *adapter);
    for (const weights::PackedTensor& packed : adapter->layout().tensors) {
      if (packed.name.ends_with(model::kLoraB)) adapter->tensor(packed.name).zero_();
    }
    weights::copy_common(session_.base(), *adapter);
  }
  model_.emplace(session_, config, session_.base().view(), std::move(adapter), memory);
}

void Reference::fill(const std::string& directory, const std::optional<checkpoint::Checkpoint>& checkpoint,
                     weights::WeightStore& store) {
  if (step_ > 0) {
    if (!store.has_storage()) store.allocate();
    restore(*checkpoint, store);
  } else if (directory.empty()) {
    session_.read_weights(store);
  } else {
    weights::load_hf_checkpoint(directory, store);
  }
}

bool Reference::keeps_average(const weights::WeightStore& own) const {
  return mixup_alpha_ < 1.0 && (own.dtype() != at::kFloat || !own.device().is_cpu());
}

void Reference::restore(const checkpoint::Checkpoint& checkpoint, weights::WeightStore& store) {
  if (!keeps_average(store)) {
    checkpoint::restore_reference(checkpoint, store);
    return;
  }
  average_.emplace(store.layout(), at::kFloat);
  checkpoint::restore_reference(checkpoint, *average_);
  for_each_piece(store, [&](const std::string& name, int64_t first, Piece& own) {
    own.from_floats(average_->tensor(name).const_data_ptr<float>() + first);
    own.write(store.tensor(name), first);
  });
}

trainer::Scores Reference::score(const std::vector<const rl::Sample*>& samples, const trainer::BatchConfig& batch,
                                 double temperature, const trainer::Ranks& ranks) {
  trainer::Scores scores = model_->score(samples, batch, temperature, ranks);
  const auto is_finite = [](float logprob) { return std::isfinite(logprob); };
  for (const std::vector<float>& of_sample : scores.logprobs) {
    if (!std::ranges::all_of(of_sample, is_finite)) refuse_reference(session_, directory_, why_not_finite());
  }
  return scores;
}

std::string Reference::why_not_finite() const {
  const bool is_over_base = directory_.empty() && session_.config().lora;
  return weights::why_not_finite(is_over_base ? session_.base() : model_->home());
}

void Reference::follow_policy(int64_t step) {
  step_ = step;
  const weights::WeightStore &home = model_->home(), &policy = session_.trained();
  if (mixup_alpha_ == 1.0) {
    for (const weights::PackedTensor& packed : home.layout().tensors)
      home.tensor(packed.name).copy_(policy.tensor(packed.name));
    return;
  }
  const auto alpha = static_cast<float>(mixup_alpha_);
  std::vector<float> numbers(kPieceElements);
  for_each_piece(home, [&](const std::string& name, int64_t first, Piece& own) {
    own.read(policy.tensor(name), first);
    own.to_floats(numbers.data());
    float* const average = saved().tensor(name).mutable_data_ptr<float>() + first;
    for (int64_t i = 0; i < own.size(); ++i) average[i] += alpha * (numbers[static_cast<size_t>(i)] - average[i]);
    if (!average_) return;
    own.from_floats(average);
    own.write(home.tensor(name), first);
  });
}

void Reference::save(checkpoint::RunState& state, std::vector<checkpoint::SavedTensor>& tensors) const {
  if (step_ == 0) return;
  state.reference_step = step_;
  for (checkpoint::SavedTensor& tensor : checkpoint::reference_tensors(saved(), session_.config().shard.rank)) {
    tensors.push_back(std::move(tensor));
  }
}

}  // namespace tandem::run
