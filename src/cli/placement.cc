#include "cli/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "base/json.h"
#include "base/standard_output.h"
#include "cli/command_line.h"
#include "cli/ranks.h"
#include "cli/restarts.h"
#include "device/backends.h"
#include "options/options.h"

namespace tandem::cli {

namespace {

struct PlacementOptions {
  int64_t max_restarts = 0;
  double wait_minutes = 0.0;
  bool restart = false;
  std::string saved_before = kNothingSaved;

  void visit(options::Options& options);
};

void PlacementOptions::visit(options::Options& options) {
  const char* const group = "placement";
  options
      .option(max_restarts, "max-restarts", group,
              "how often the run is started again after a process that trains has failed, from the last checkpoint in "
              "--save")
      .at_least(0)
      .at_most(1000000);
  options
      .option(wait_minutes, "wait-minutes", group,
              "minutes to wait for devices that the cluster does not have yet; it waits as long as it takes for those "
              "that others use")
      .at_least(0.0)
      .at_most(7 * 24 * 60);
  options.option(restart, "restart", group, "print the arguments that restart a run which was started before");
  options.option(saved_before, "saved-before", group,
                 "with --restart: the value of \"saved\" that this command printed before the run was first started; a "
                 "checkpoint that was there already is not resumed");
}

}  // namespace

int print_placement(const Verb& verb, const std::vector<std::string>& arguments) {
  const auto verb_of_run = std::find_if(arguments.begin(), arguments.end(), is_ranked_verb);
  for (auto word = arguments.begin(); word != verb_of_run; ++word) {
    const std::string ours = verb_of_other_trainer(*word);
    TANDEM_USER_CHECK(ours.empty(), fmt::format("placement: {}: here it is {} ...", *word, ours));
  }
  PlacementOptions own;
  options::Options options;
  own.visit(options);
  // A "--" may stand between the options and the run, as it does for `tandem launch`.
  const bool is_parted = verb_of_run != arguments.begin() && *(verb_of_run - 1) == "--";
  const options::ParsedAction action = options.parse({arguments.begin(), verb_of_run - (is_parted ? 1 : 0)});
  if (was_answered(action, options, "tandem placement [options] train|sft [options of it]", verb.description)) return 0;
  TANDEM_USER_CHECK(verb_of_run != arguments.end(),
                    "placement: the run comes after the options: tandem placement --max-restarts 3 train ..., or sft");
  std::vector<std::string> words(verb_of_run + 1, arguments.end());
  const RankedRun run = read_ranked_run("placement", *verb_of_run, words);
  run.check();
  run.mesh.check_ranks(run.device);
  TANDEM_USER_CHECK(!run.mesh.joins(),
                    "placement: --rollout-join and --rollout-join-address are for one more engine "
                    "of a run that is running already; leave them out");
  if (own.restart) words = restarted(words, run.save, run.checkpoints, own.saved_before);
  std::vector<std::string> trainer_words = words;
  const mesh::Placement& placement = run.placement;
  // A cluster may lose an engine and give it back at any time, so that all of them join.
  if (placement.num_workers > 0) trainer_words.insert(trainer_words.end(), {"--rollout-num-gpus", "0"});
  const device::BackendRow& backend = device::backend_of(device::parse_device(run.device));
  const base::Json json = {{"verb", run.verb},
                           {"resource", backend.resource},
                           {"visible_devices", backend.visible_devices},
                           {"hosts", placement.num_hosts},
                           {"devices_per_host", placement.trainers_per_host},
                           {"engines", placement.num_engines()},
                           {"devices_per_engine", placement.per_engine},
                           {"max_restarts", own.max_restarts},
                           {"wait_minutes", own.wait_minutes},
                           {"saved", saved_state(run.save)},
                           {"train", trainer_words},
                           {"join", words}};
  base::write_to_standard_output(base::dump_json(json) + "\n");
  return 0;
}

}  // namespace tandem::cli
