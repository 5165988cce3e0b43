#include "run/same_files.h"

#include <fmt/format.h>

#include <vector>

#include "base/check.h"
#include "base/checksum.h"
#include "base/json.h"
#include "base/log.h"
#include "checkpoint/result_inputs.h"
#include "data/lines.h"
#include "evaluation/eval_sets.h"
#include "mesh/agreement.h"
#include "mesh/network.h"
#include "model/peft.h"
#include "session/together.h"
#include "weights/checkpoint_files.h"

namespace tandem::run {

namespace {

constexpr const char* kHost = "the host";

ReadFiles read_files(const std::optional<checkpoint::Checkpoint>& checkpoint,
                     const std::map<std::string, std::string>& result_inputs, const session::ModelSession& session,
                     const config::ModelOptions& model, const config::EvalOptions& eval) {
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
  for (const config::EvalSet& set : evaluation::read_eval_sets(eval)) {
    read[fmt::format("the file of data set {} of the evaluation", set.name)] =
        base::file_checksum(data::parse_data_path(set.path).file);
  }
  return read;
}

// Returns a line that names the first rank that has read something else than rank 0, and what; "" if all are alike.
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

// Warns of the first rank whose kernels are others than those of rank 0.
void warn_of_kernels(const mesh::Mesh& mesh, const std::string& own) {
  const std::vector<std::string> texts = session::together(
      mesh.host(), [&] { return mesh::text_of({.host = mesh::host_name(), .kernels = own}); });
  const mesh::RankFacts first = mesh::facts_of(texts.at(0));
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    const mesh::RankFacts facts = mesh::facts_of(texts[rank]);
    const std::string line = mesh::other_kernels(first, facts, fmt::format("rank {} ({})", rank, facts.host));
    if (line.empty()) continue;
    base::log_warning("{}", line);
    return;
  }
}

}  // namespace

void check_read_alike(const mesh::Mesh& mesh, const std::function<ReadFiles()>& read) {
  const std::vector<std::string> texts = session::together(mesh.host(), [&] {
    ReadFiles own = read();
    own[kHost] = mesh::host_name();
    return base::dump_json(base::Json(own));
  });
  std::vector<ReadFiles> ranks;
  for (const std::string& text : texts) ranks.push_back(base::Json::parse(text).get<ReadFiles>());
  const std::string difference = differing_files(ranks);
  TANDEM_ENV_CHECK(difference.empty(), difference);
}

void check_same_files(const mesh::Mesh& mesh, const std::optional<checkpoint::Checkpoint>& checkpoint,
                      const std::map<std::string, std::string>& result_inputs, const session::ModelSession& session,
                      const config::ModelOptions& model, const config::EvalOptions& eval) {
  if (mesh.is_alone()) return;
  check_read_alike(mesh, [&] { return read_files(checkpoint, result_inputs, session, model, eval); });
  warn_of_kernels(mesh, session.ops().name());
}

}  // namespace tandem::run
