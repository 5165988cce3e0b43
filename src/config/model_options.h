// Declares the options that name the model, its dtype and its device. Every verb shares them.
#pragma once

#include <cstdint>
#include <string>

#include "options/options.h"

namespace tandem::config {

struct ModelOptions {
  std::string hf_checkpoint;
  std::string dtype = "auto";  // "auto": the checkpoint's
  bool random_init = false;    // draw the weights instead of reading them
  int64_t seed = 1234;

  std::string device = "cpu";
  std::string cpu_isa = "auto";
  int64_t num_threads = 0;  // 0: all cores

  void visit(options::Options& options);
  // These are the parts of visit() after --hf-checkpoint, for a verb that needs none.
  void visit_dtype(options::Options& options);
  void visit_device(options::Options& options);
};

}  // namespace tandem::config
