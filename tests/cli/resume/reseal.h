// Changes the state.json of a checkpoint, so that it is whole all the same.
#pragma once

#include <functional>
#include <string>

#include "base/checksum.h"
#include "base/files.h"
#include "base/json.h"
#include "checkpoint/manifest.h"

namespace tandem::cli {

// Writes state.json anew and seals it, as anyone can who can write into a run.
inline void reseal(const std::string& step_path, const std::function<void(base::Json&)>& change) {
  const std::string state_path = step_path + "/state.json", manifest_path = step_path + "/MANIFEST.json";
  base::Json state = base::read_json_file(state_path);
  change(state);
  base::write_file_durably(state_path, base::dump_json(state) + "\n");
  checkpoint::Manifest manifest = checkpoint::parse_manifest(base::read_file(manifest_path), manifest_path);
  manifest.files["state.json"] = {.bytes = base::ReadableFile(state_path).size(),
                                  .checksum = base::file_checksum(state_path)};
  base::write_file_durably(manifest_path, checkpoint::manifest_text(manifest));
}

}  // namespace tandem::cli
