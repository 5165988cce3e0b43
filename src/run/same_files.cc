#include "run/same_files.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/json.h"
#include "checkpoint/result_inputs.h"
#include "mesh/network.h"
#include "model/peft.h"
#include "session/together.h"
#include "weights/checkpoint_files.h"

namespace tandem::run {

namespace {

constexpr const char* kHost = "the host";

ReadFiles read_files(const std::optional<checkpoint::Checkpoint>& checkpoint,
                     const std::map<std::string, std::string>& result_inputs, const session::ModelSession& session,
                     const config::ModelOptions& model) {
  ReadFiles read;
  for (const auto& [name, value] : result_inputs) {
    if (checkpoint::is_from_file(name)) read[name] = value;  // flags were compared when the ranks met
  }
  read["the checkpoint of --load"] =
      checkpoint ? fmt::format("step {}, checksum {}", checkpoint->step(), checkpoint->checksum()) : "none";
  if (!model.random_init)
    read["the weight files of --hf-checkpoint"] = weights::weights_fingerprint(session.directory());
  if (model::is_adapter_directory(model.hf_checkpoint)) {
    read["the adapter of --hf-checkpoint"] = weights::weights_fingerprint(model.hf_checkpoint, weights::kAdapterFile);
  }
  read[kHost] = mesh::host_name();
  return read;
}

}  // namespace

std::string differing_files(const std::vector<ReadFiles>& ranks) {
  const auto value_of = [](const ReadFiles& read, const std::string& name) {
    const auto found = read.find(name);
    return found == read.end() ? "none" : found->second;
  };
  const ReadFiles& first = ranks.at(0);
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    ReadFiles both = first;
    both.insert(ranks[rank].begin(), ranks[rank].end());
    for (const auto& [name, ignored] : both) {
      const std::string theirs = value_of(ranks[rank], name), ours = value_of(first, name);
      if (name == kHost || theirs == ours) continue;
      return fmt::format(
          "{}: differs between rank {} ({}), which has {}, and rank 0 ({}), which has {}; give all "
          "hosts the same files",
          name, rank, value_of(ranks[rank], kHost), theirs, value_of(first, kHost), ours);
    }
  }
  return "";
}

void check_same_files(const mesh::Mesh& mesh, const std::optional<checkpoint::Checkpoint>& checkpoint,
                      const std::map<std::string, std::string>& result_inputs, const session::ModelSession& session,
                      const config::ModelOptions& model) {
  if (mesh.is_alone()) return;
  const std::vector<std::string> texts = session::together(
      mesh.host(), [&] { return base::dump_json(base::Json(read_files(checkpoint, result_inputs, session, model))); });
  std::vector<ReadFiles> ranks;
  for (const std::string& text : texts) ranks.push_back(base::Json::parse(text).get<ReadFiles>());
  const std::string difference = differing_files(ranks);
  TANDEM_ENV_CHECK(difference.empty(), difference);
}

}  // namespace tandem::run
