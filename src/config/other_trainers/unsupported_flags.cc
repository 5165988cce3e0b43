#include "config/other_trainers/unsupported_flags.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>

namespace tandem::config {

namespace {

constexpr const char* kOneDevice =
    "a model is spread by --tensor-model-parallel-size alone; leave it out (1 is accepted)";
constexpr const char* kOneDeviceSwitch = "a model is spread by --tensor-model-parallel-size alone; leave it out";
constexpr const char* kSharded = "the optimizer's state is always spread over the devices";
constexpr const char* kBalanced = "work is always balanced over the devices";
constexpr const char* kEngineOwn =
    "the rollout engine is Tandem's own; its memory is --kv-cache-bytes, its sampling --rollout-*";
constexpr const char* kNoRay =
    "--actor-num-gpus-per-node and --rollout-num-gpus say what runs where; on a Ray cluster: python -m tandem.ray "
    "(docs/CLUSTERS.md)";
constexpr const char* kNoCritic = "there is no critic; use an estimator without one (--advantage-estimator grpo)";
constexpr const char* kNoSink = "metrics go to metrics.jsonl, TensorBoard, --use-wandb, --use-trackio and --use-mlflow";
constexpr const char* kNoSync =
    "with --colocate weights are never copied, without it all of them are sent as they are, after each rollout";
constexpr const char* kHealth =
    "a device that only samples is given up when it is silent for --rollout-health-check-timeout";
constexpr const char* kNoHook = "this hook is not in this version; --custom-rm-path takes Python functions for rewards";
constexpr const char* kLoraFlags =
    "an adapter is --lora-rank, --lora-alpha, --use-rslora, --lora-dropout, --target-modules and --modules-to-save of "
    "train and sft, no more";
constexpr const char* kTrainedParameters = "all parameters are trained, or with --lora-rank an adapter";
constexpr const char* kExpertsAreCut =
    "experts are cut as the rest of the model, by --tensor-model-parallel-size; leave it out (1 is accepted)";
constexpr const char* kEngineExperts =
    "--rollout-expert-parallel shares experts between the devices that train, while they decode";
constexpr const char* kNoDispatch =
    "each device has a part of every expert, or all of them: in training no token is sent to another; leave it out";
constexpr const char* kExpertKernels = "which kernels of experts are fused is the device's; leave it out";
constexpr const char* kNoCapacity = "no token is dropped: an expert computes as many as choose it; leave it out";
constexpr const char* kNoUpcycling = "a dense model is not made into a sparse one";
constexpr const char* kNoOffload =
    "phases share the device's memory without copies; --offload-train sends out what only training needs";
constexpr const char* kNoMtp = "multi-token prediction is not in this version";
constexpr const char* kNoBuffer = "there is no rollout buffer: each rollout is sampled, graded and trained on in turn";
constexpr const char* kOtherFamily = "the families of models that it is for are not in this version";
constexpr const char* kNoAsync =
    "devices that sample get the weights after each rollout; to train on older samples give --max-weight-staleness; leave "
    "it out";
constexpr const char* kNoPartialLoad =
    "--load resumes all of a run; for new weights only, name them as --hf-checkpoint";
constexpr const char* kDynamic = "batches are always packed under a token budget: --max-tokens-per-gpu";
constexpr const char* kPrecision = "computes in the checkpoint's dtype; --dtype float32 or bfloat16 overrides it";
constexpr const char* kMemoryFiles =
    "RUN/memory_timeline.jsonl and memory_trace.json say what memory was taken for, in every run";
constexpr const char* kModelFromConfig = "the model's shape is read from --hf-checkpoint's config.json";

constexpr auto kFlags = std::to_array<UnsupportedFlag>({
    // These are about the cluster and parallelism.
    {"pipeline-model-parallel-size", "1", kOneDevice},
    {"context-parallel-size", "1", kOneDevice},
    {"expert-model-parallel-size", "1", kExpertsAreCut},
    {"expert-tensor-parallel-size", "1", kExpertsAreCut},
    {"virtual-pipeline-model-parallel-size", "1", kOneDevice},
    {"decoder-first-pipeline-num-layers", nullptr, kOneDeviceSwitch},
    {"decoder-last-pipeline-num-layers", nullptr, kOneDeviceSwitch},
    {"allgather-cp", nullptr, kOneDeviceSwitch},
    {"use-distributed-optimizer", "", kSharded},
    {"balance-data", "", kBalanced},
    {"balance-by-flops", "", kBalanced},
    {"ray-*", nullptr, kNoRay},
    {"train-env-vars", "{}", kNoRay},
    {"prefill-num-servers", nullptr, kNoRay},
    {"train-backend", nullptr, "there is one trainer, Tandem's own"},
    // These are about memory phases.
    {"offload", nullptr, kNoOffload},
    {"offload-*", nullptr, kNoOffload},
    {"no-offload-*", "", kNoOffload},
    {"release-train", nullptr, kNoOffload},
    {"optimizer-cpu-offload", nullptr, "--offload-optimizer keeps its state on the host and streams it"},
    {"overlap-cpu-optimizer-d2h-h2d", nullptr, "--offload-optimizer streams in both directions while it computes"},
    {"use-precision-aware-optimizer", nullptr, "masters, moments and gradients are float32, always"},
    {"use-stateless-adam", nullptr, kNoOffload},
    {"stream-optimizer-state-to-disk", nullptr, kNoOffload},
    {"keep-old-actor", nullptr, "the engine's log-probs are the old log-probs, bit for bit: no second copy is needed"},
    // These are about weight sync; a row holds before those below it.
    {"update-weights-interval", "1", kNoAsync},
    {"update-weight-mode", "full", kNoSync},
    {"update-weight-transport", "nccl",
     "weights go from process to process and never through files; leave it out (nccl is accepted)"},
    {"update-weight*", nullptr, kNoSync},
    {"megatron-to-hf-mode", nullptr, kNoSync},
    {"check-weight-update-equal", "", "weights that are sent are always compared, by a checksum of each piece"},
    // These are about the engine.
    {"vllm-enable-expert-parallel", nullptr, kEngineExperts},
    {"sglang-ep-size", "1", kEngineExperts},
    {"sglang-expert-parallel-size", "1", kEngineExperts},
    {"vllm-*", nullptr, kEngineOwn},
    {"sglang-speculative-*", nullptr,
     "--speculative-num-draft-tokens 7 guesses tokens from text that was seen before; there is no draft model"},
    {"sglang-*", nullptr, kEngineOwn},
    {"router-*", nullptr, kEngineOwn},
    {"rollout-external*", nullptr, kEngineOwn},
    {"rollout-data-transport", nullptr, kEngineOwn},
    {"rollout-queue-*", nullptr, kEngineOwn},
    {"rollout-health-check-*", nullptr, kHealth},
    {"use-fault-tolerance", "", kHealth},
    {"http-proxy", nullptr, kEngineOwn},
    {"use-distributed-post", nullptr, kEngineOwn},
    {"rollout-buffer-url", nullptr, kNoBuffer},
    {"rollout-task-type", nullptr, kNoBuffer},
    {"fetch-trajectory-retry-times", nullptr, kNoBuffer},
    {"min-batch-collection-ratio", nullptr, kNoBuffer},
    {"load-forge-rollout-data", nullptr,
     "--load-debug-rollout-data DIR/{rollout_id}.jsonl trains on rollouts from files, without sampling"},
    {"load-debug-rollout-data-subsample", nullptr, "all of a dumped rollout is trained on"},
    {"use-rollout-routing-replay", "", "engine and trainer choose the same experts, bit for bit: nothing is replayed"},
    {"use-routing-replay", nullptr,
     "later optimizer steps of a rollout route by their own weights; --advantage-estimator gspo has one ratio for a "
     "whole sample, and --num-steps-per-rollout 1 has no later step"},
    // These are hooks.
    {"rollout-function-path", nullptr, kNoHook},
    {"buffer-filter-path", nullptr, kNoHook},
    {"rollout-sample-filter-path", nullptr, kNoHook},
    {"rollout-all-samples-process-path", nullptr, kNoHook},
    {"rollout-sample-hook-path", nullptr, kNoHook},
    {"rollout-data-postprocess-path", nullptr, kNoHook},
    {"custom-tis-function-path", nullptr,
     "this hook is not in this version; --use-tis has --tis-level token, sequence and geometric, each with --tis-mode "
     "truncate, mask and reject, and there is --tis-veto",
     false, "use-tis tis-clip tis-clip-low"},
    {"custom-advantage-function-path", nullptr,
     "here it is --custom-advantage-path FILE.py:function, which is given the groups of a rollout: docs/ADVANTAGES.md"},
    {"custom-reward-post-process-path", nullptr,
     "--custom-advantage-path FILE.py:function makes advantages of a rollout's rewards: docs/ADVANTAGES.md"},
    {"custom-rm", nullptr, "a reward of your own is --custom-rm-path FILE.py:function: docs/REWARDS.md"},
    {"custom-generate-function", nullptr,
     "the function is given by --custom-generate-function-path FILE.py:function: docs/SAMPLING.md"},
    {"custom-advantage", nullptr,
     "advantages of your own are --custom-advantage-path FILE.py:function: docs/ADVANTAGES.md"},
    {"custom-*", nullptr, kNoHook},
    {"data-source-path", nullptr, kNoHook},
    {"eval-function-path", nullptr, kNoHook},
    {"eval-tool-key", nullptr, "evaluation data have their tools under --tool-key too"},
    {"eval-min-new-tokens", "0", "completions have no shortest length: they end where the model ends them"},
    {"loss-mask-type", nullptr, "the chat template says which tokens are trained on: docs/DATA.md"},
    {"rollout-global-dataset", "", "prompts always come from --prompt-data"},
    {"disable-rollout-global-dataset", nullptr, kNoHook},
    {"multimodal-keys", nullptr, "only text models are in this version"},
    // These are about training.
    {"loss-type", "policy_loss",
     "`tandem train` optimises the policy loss; `tandem sft` the supervised one; TRL's loss_type is "
     "--advantage-estimator and --loss-agg-mode"},
    {"disable-compute-advantages-and-returns", nullptr,
     "`tandem train` always computes advantages; `tandem sft` trains without them"},
    {"megatron-config-path", nullptr, "there is no Megatron underneath: --config FILE.toml has flags of Tandem"},
    {"megatron-deepgemm-*", nullptr, kPrecision},
    {"enable-mtp-training", nullptr, kNoMtp},
    {"mtp-*", nullptr, kNoMtp},
    {"freeze-indexer", nullptr, kOtherFamily},
    {"qwen-gdn-backend", nullptr, kOtherFamily},
    {"micro-batch-size", "1", kDynamic},
    {"ref-micro-batch-size", "1", kDynamic},
    {"use-dynamic-batch-size", "", kDynamic},
    {"log-probs-max-tokens-per-gpu", nullptr, kDynamic},
    {"log-probs-chunk-size", nullptr, "the head is always chunked: --logprob-chunk-rows"},
    {"data-pad-size-multiplier", nullptr, "nothing is padded"},
    {"qkv-format", "thd", "batches are always packed"},
    {"variable-global-batch-size", nullptr, "the batch of an optimizer step is fixed: --global-batch-size"},
    {"global-batch-size-schedule", nullptr, "the batch of an optimizer step is fixed: --global-batch-size"},
    {"recompute-method", "block",
     "--recompute-granularity full alone recomputes every layer, as uniform does: leave out this and "
     "--recompute-num-layers, which would be the number of recomputed layers",
     false, "recompute-num-layers"},
    {"recompute-loss-function", "", "the head is always chunked: --logprob-chunk-rows"},
    {"optimizer", "adam", "AdamW is the only optimizer"},
    {"bf16", "", kPrecision},
    {"fp16", nullptr, kPrecision},
    {"fp8*", nullptr, kPrecision},
    {"transformer-impl", nullptr, kPrecision},
    {"attention-dropout", "0|0.0", "dropout is 0, always"},
    {"hidden-dropout", "0|0.0", "dropout is 0, always"},
    {"accumulate-allreduce-grads-in-fp32", "", "gradients are float32, always"},
    {"attention-softmax-in-fp32", "", "softmax is float32, always"},
    {"attention-backend", nullptr, "trainer and engine share one attention, or they would not agree bit for bit"},
    {"no-check-for-nan-in-loss-and-grad", nullptr,
     "a step whose loss or gradient is not finite is always skipped and counted; --max-skipped-steps ends the run"},
    {"seq-length", nullptr, "--rollout-max-context-len is the longest prompt with its completion"},
    {"lr-warmup-fraction", nullptr, "--lr-warmup-iters counts optimizer steps"},
    {"no-rope-fusion", nullptr, "which kernels are fused is the device's; leave it out"},
    {"no-masked-softmax-fusion", nullptr, "which kernels are fused is the device's; leave it out"},
    {"no-gradient-accumulation-fusion", nullptr, "which kernels are fused is the device's; leave it out"},
    {"deterministic-mode", "", "a run is the value of its flags, bit for bit, always"},
    {"train-iters", nullptr, "the length of a run is --num-rollout or --num-epoch"},
    {"reset-optimizer-states", nullptr, "optimizer states live for the whole run in this version"},
    {"opd-type", "megatron",
     "--opd-teacher-load names the Hugging Face directory of a teacher in the trainer's process, as slime's megatron, "
     "and --opd-teacher-address a process of tandem scorer, as slime's sglang; no sample has a second prompt"},
    {"opd-teacher-ckpt-step", nullptr, "--opd-teacher-load is a Hugging Face directory, not a folder of steps"},
    {"opd-*", nullptr,
     "this option of slime's distillation is not in this version: docs/DISTILLATION.md has those that are"},
    {"opsd-beta", nullptr, "the divergence of the whole distributions is --opd-loss-coef, with --opd-beta"},
    {"opsd-*", nullptr, "a teacher that is given another prompt than the policy is not in this version"},
    {"use-score-centering", nullptr, "score centering is not in this version"},
    {"score-centering-top-k", nullptr, "score centering is not in this version"},
    {"critic-*", nullptr, kNoCritic},
    {"num-critic-only-steps", "0", kNoCritic},
    {"value-clip", nullptr, kNoCritic},
    {"lambd", "1|1.0", kNoCritic},
    {"only-train-params-name-list", nullptr, kTrainedParameters},
    {"freeze-params-name-list", nullptr, kTrainedParameters},
    {"lora-type", "lora", kLoraFlags},
    {"lora-*", nullptr, kLoraFlags},
    {"exclude-modules", nullptr, "name the modules that get an adapter: --target-modules"},
    {"use-rollout-logprobs", "",
     "the engine's log-probs are the old ones by default; --old-logprobs proximal is slime without this flag"},
    {"use-rollout-entropy", nullptr, "entropy comes from the training forward"},
    // These are about the model's shape.
    {"model-name", nullptr, kModelFromConfig},
    {"num-layers", nullptr, kModelFromConfig},
    {"hidden-size", nullptr, kModelFromConfig},
    {"ffn-hidden-size", nullptr, kModelFromConfig},
    {"num-attention-heads", nullptr, kModelFromConfig},
    {"group-query-attention", nullptr, kModelFromConfig},
    {"num-query-groups", nullptr, kModelFromConfig},
    {"kv-channels", nullptr, kModelFromConfig},
    {"qk-layernorm", nullptr, kModelFromConfig},
    {"rotary-*", nullptr, kModelFromConfig},
    {"use-rope-scaling", nullptr, kModelFromConfig},
    {"position-embedding-type", nullptr, kModelFromConfig},
    {"max-position-embeddings", nullptr, kModelFromConfig},
    {"add-qkv-bias", nullptr, kModelFromConfig},
    {"spec", nullptr, kModelFromConfig},
    {"vocab-size", nullptr, kModelFromConfig},
    {"padded-vocab-size", nullptr, kModelFromConfig},
    {"make-vocab-size-divisible-by", nullptr, kModelFromConfig},
    {"swiglu", nullptr, kModelFromConfig},
    {"normalization", nullptr, kModelFromConfig},
    {"norm-epsilon", nullptr, kModelFromConfig},
    {"disable-bias-linear", nullptr, kModelFromConfig},
    {"use-rotary-position-embeddings", nullptr, kModelFromConfig},
    {"untie-embeddings-and-output-weights", nullptr, kModelFromConfig},
    {"num-experts", nullptr, kModelFromConfig},
    {"moe-ffn-hidden-size", nullptr, kModelFromConfig},
    {"moe-layer-freq", nullptr, kModelFromConfig},
    {"moe-router-topk", nullptr, kModelFromConfig},
    {"moe-router-pre-softmax", nullptr, kModelFromConfig},
    {"moe-shared-expert-intermediate-size", nullptr, kModelFromConfig},
    {"moe-shared-expert-gate", nullptr, kModelFromConfig},
    // These are about experts.
    {"moe-router-score-function", "softmax", kOtherFamily},
    {"moe-router-num-groups", "1", kOtherFamily},
    {"moe-router-group-topk", "1", kOtherFamily},
    {"moe-router-topk-scaling-factor", "1|1.0", kOtherFamily},
    {"moe-router-enable-expert-bias", nullptr, kOtherFamily},
    {"moe-router-bias-update-rate", "0|0.0", kOtherFamily},
    {"moe-router-dtype", "fp32", "the router's logits are float32, always; leave it out (fp32 is accepted)"},
    {"moe-router-force-load-balancing", nullptr, "a token goes to the experts with its largest logits; leave it out"},
    {"moe-router-padding-for-*", nullptr, "nothing is padded"},
    {"moe-z-loss-coeff", "0|0.0",
     "no term of the loss keeps the router's logits small; --freeze-moe-router keeps the router; leave it out (0 is "
     "accepted)"},
    {"moe-input-jitter-eps", "0|0.0", "no noise is added to what the router reads; leave it out (0 is accepted)"},
    {"moe-expert-capacity-factor", nullptr, kNoCapacity},
    {"moe-pad-expert-input-to-capacity", nullptr, kNoCapacity},
    {"moe-token-drop-policy", "probs|position", kNoCapacity},
    {"moe-token-dispatcher-type", "allgather|alltoall|alltoall_seq|flex", kNoDispatch},
    {"moe-enable-deepep", "", kNoDispatch},
    {"moe-flex-dispatcher-backend", "deepep|hybridep", kNoDispatch},
    {"moe-deepep-num-sms", nullptr, kNoDispatch},
    {"moe-hybridep-num-sms", nullptr, kNoDispatch},
    {"moe-shared-expert-overlap", "", kNoDispatch},
    {"overlap-moe-expert-parallel-comm", "", kNoDispatch},
    {"moe-extended-tp", nullptr, "experts are cut as the rest of the model, by --tensor-model-parallel-size, always"},
    {"moe-grouped-gemm", "", kExpertKernels},
    {"moe-use-legacy-grouped-gemm", "", kExpertKernels},
    {"moe-permute-fusion", "", kExpertKernels},
    {"moe-router-fusion", "", kExpertKernels},
    {"moe-apply-probs-on-input", nullptr, "the result of an expert is weighted, not its input"},
    {"moe-layer-recompute", nullptr, "--recompute-granularity full recomputes whole layers"},
    {"moe-use-upcycling", nullptr, kNoUpcycling},
    {"moe-upcycling-granularity", nullptr, kNoUpcycling},
    {"moe-*", nullptr, "no such choice about experts is in this version; docs/EXPERTS.md says what is"},
    // These are about checkpoints.
    {"ref-ckpt-step", nullptr, "--ref-load names a Hugging Face directory"},
    {"start-rollout-id", "0", kNoPartialLoad, true},
    {"finetune", "", kNoPartialLoad, true},
    {"no-load-optim", "", kNoPartialLoad, true},
    {"no-load-rng", "", kNoPartialLoad, true},
    {"no-save-optim", nullptr,
     "--load resumes bit for bit, so checkpoints/ hold the optimizer; --keep-latest 1 keeps one, hf/ has weights "
     "alone"},
    {"async-save", "", "checkpoints are always written while the next rollout runs"},
    {"ckpt-format", nullptr, "checkpoints/ and hf/ are safetensors files; leave it out"},
    {"save-hf", nullptr, "give --save-interval N: every checkpoint then comes with an export, RUN/hf/step_000100"},
    // These are about reporting and debugging.
    {"wandb-key", nullptr,
     "a key on a command line is seen by all users of the machine; set WANDB_API_KEY, or run `wandb login` once"},
    {"wandb-always-use-train-step", nullptr,
     "train/* counts optimizer steps, everything else rollouts: each has an axis of its own there"},
    {"wandb-*", nullptr, "not in this version; --help lists the flags of Weights & Biases that are"},
    {"use-prometheus", nullptr, kNoSink},
    {"tensorboard-dir", nullptr,
     "event files are in the run's own folder, so that --load continues them: RUN/tensorboard"},
    {"tb-*", nullptr, "event files are in the run's own folder, so that --load continues them: RUN/tensorboard"},
    {"log-interval", "1", "every rollout and every optimizer step is recorded; leave it out (1 is accepted)"},
    {"log-multi-turn", nullptr,
     "multi_turn/* is always written where --custom-generate-function-path makes the samples"},
    {"log-reward-category", nullptr, "rewards by category are not in this version; samples/ has every reward"},
    {"log-correct-samples", nullptr, "samples/ has every sample with its reward"},
    {"debug-rollout-only", nullptr, "use `tandem generate` or `tandem eval`"},
    {"debug-train-only", nullptr,
     "--load-debug-rollout-data DIR/{rollout_id}.jsonl trains on dumped rollouts, without sampling"},
    {"save-debug-train-data", nullptr, "--save-debug-rollout-data has tokens, log-probs, rewards and advantages"},
    {"dump-details", nullptr, "--save-debug-rollout-data has tokens, log-probs, rewards and advantages"},
    {"profile-*", nullptr, "profiling is not in this version; perf/* in metrics.jsonl says where time went"},
    {"record-memory-history", nullptr, kMemoryFiles},
    {"memory-snapshot-*", nullptr, kMemoryFiles},
    {"memory-recorder", nullptr, kMemoryFiles},
    {"ci-*", nullptr,
     "not in this version; each rollout's first step has train/train_rollout_logprob_abs_diff 0, see metrics.jsonl"},
});

bool matches(std::string_view pattern, std::string_view name) {
  if (!pattern.ends_with('*')) return pattern == name;
  return name.starts_with(pattern.substr(0, pattern.size() - 1));
}

bool is_flag(const std::string& word) { return word.size() > 2 && word.starts_with("--"); }

}  // namespace

std::span<const UnsupportedFlag> unsupported_flags() { return kFlags; }

const UnsupportedFlag* find_unsupported_flag(const std::string& name) {
  const auto* const found =
      std::ranges::find_if(kFlags, [&](const UnsupportedFlag& flag) { return matches(flag.name, name); });
  return found == kFlags.end() ? nullptr : &*found;
}

bool is_harmless(const UnsupportedFlag& flag, const std::optional<std::string>& value) {
  if (flag.harmless == nullptr) return false;
  if (std::string_view(flag.harmless).empty()) return !value || *value == "true";
  std::istringstream values(flag.harmless);
  std::string one;
  while (value && std::getline(values, one, '|')) {
    if (one == *value) return true;
  }
  return false;
}

std::vector<std::string> without_harmless_flags(const std::vector<std::string>& arguments) {
  const bool goes_on = std::ranges::any_of(
      arguments, [](const std::string& word) { return word == "--load" || word.starts_with("--load="); });
  std::vector<std::string> kept;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (!is_flag(word)) {
      kept.push_back(word);
      continue;
    }
    const size_t equals = word.find('=');
    const std::string name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
    const UnsupportedFlag* const flag = find_unsupported_flag(name);
    std::optional<std::string> value;
    const bool value_follows = equals == std::string::npos && i + 1 < arguments.size() && !is_flag(arguments[i + 1]);
    if (equals != std::string::npos) value = word.substr(equals + 1);
    if (value_follows) value = arguments[i + 1];
    if (flag == nullptr || !is_harmless(*flag, value) || (flag->of_a_new_run && goes_on)) {
      kept.push_back(word);
      continue;
    }
    if (value_follows) ++i;
  }
  return kept;
}

}  // namespace tandem::config
