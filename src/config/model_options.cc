#include "config/model_options.h"

#include "base/size.h"
#include "device/backends.h"

namespace tandem::config {

void ModelOptions::visit(options::Options& options) {
  const char* const group = "model";
  options.option(hf_checkpoint, "hf-checkpoint", group, "Hugging Face directory: config.json, weights, tokenizer.json")
      .required()
      .path()
      .does_not_affect_results();
  visit_dtype(options);
  visit_device(options);
}

void ModelOptions::visit_dtype(options::Options& options) {
  const char* const group = "model";
  options
      .option(dtype, "dtype", group,
              "dtype of weights and compute; auto: the checkpoint's; nf4, int8: the matrices of the layers in 4 or 8 "
              "bits, as bitsandbytes has them, and the rest in bfloat16, which is computed in: to train, with "
              "--lora-rank, an adapter over them (QLoRA)")
      .one_of({"auto", "float32", "bfloat16", "nf4", "int8"});
  options.option(random_init, "random-init", group,
                 "draw the weights from --seed instead of reading them (initializer_range of config.json)");
  options
      .option(seed, "seed", group,
              "seed of what is drawn: all weights with --random-init, those of a new LoRA adapter, and the tokens that "
              "--pg-loss-type clip_cov chooses")
      .at_least(0);
}

void ModelOptions::visit_device(options::Options& options) {
  const char* const group = "device";
  options.option(device, "device", group, "where to compute: " + device::device_help());
  options.option(cpu_isa, "cpu-isa", group, "instruction set of the kernels; auto: the best that the machine has")
      .one_of({"auto", "amx", "avx512bf16", "avx512", "avx2", "neon", "scalar"});
  options.option(num_threads, "num-threads", group, "threads of the kernels; 0: all cores")
      .at_least(0)
      .at_most(base::kMaxCount)
      .at_most(1024)
      .does_not_affect_results();
}

}  // namespace tandem::config
