// Declares the options of `tandem device`.
#pragma once

#include <cstdint>
#include <string>

#include "config/model_options.h"
#include "options/options.h"

namespace tandem::config {

struct DeviceConfig {
  ModelOptions model;  // hf_checkpoint "": a tiny model with drawn weights
  bool check = false;
  int64_t ranks = 1;
  std::string report;

  void visit(options::Options& options);
  // Throws UserError when two flags contradict.
  void check_flags() const;
};

}  // namespace tandem::config
