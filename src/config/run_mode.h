// Tells how a verb was called, apart from its own options.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/json.h"

namespace tandem::config {

struct RunMode {
  bool dry_run = false;                                    // check everything, read the data, print the plan, and stop
  std::string config_text;                                 // the options as TOML, for RUN/config.toml
  std::map<std::string, std::string> result_options;       // options::Options::result_options()
  std::map<std::string, std::string> values_where_absent;  // options::Options::values_where_absent()
  std::vector<std::string> config_files;                   // files that --config named
  // The texts of fingerprints in result_options, those of the run that --load names too, without secrets.
  std::map<std::string, std::string> texts;
  std::vector<std::string> idle_flags;       // options::Options::idle_texts()
  base::Json values = base::Json::object();  // options::Options::values(), without secrets
};

}  // namespace tandem::config
