#include "config/tracker_options.h"

#include <string>
#include <vector>

namespace tandem::config {

void TrackerOptions::visit(options::Options& options) {
  visit_wandb(options);
  visit_trackio(options);
  visit_mlflow(options);
}

void TrackerOptions::visit_wandb(options::Options& options) {
  const char* const group = "Weights & Biases";
  options
      .option(use_wandb, "use-wandb", group,
              "send the metrics to Weights & Biases too; needs its package (in a clone `tools/setup.sh wandb`, with an "
              "installed wheel `pip install 'tandem[wandb]'`) and the key in WANDB_API_KEY or from `wandb login`")
      .does_not_affect_results();
  options
      .option(wandb.mode, "wandb-mode", group,
              "online; offline: into files alone, for `wandb sync`; disabled: nowhere. Unset: WANDB_MODE, or online")
      .one_of(std::vector<std::string>{"online", "offline", "disabled"})
      .or_empty()
      .does_not_affect_results();
  options
      .option(wandb.project, "wandb-project", group,
              "project that the run belongs to; unset: WANDB_PROJECT, or W&B's "
              "own choice")
      .does_not_affect_results();
  options.option(wandb.team, "wandb-team", group, "team (entity) that the project belongs to; unset: the key's own")
      .does_not_affect_results();
  options
      .option(wandb.group, "wandb-group", group,
              "group that the run belongs to, and the beginning of its name; unset: the name is that of --save")
      .does_not_affect_results();
  options
      .option(wandb.disable_random_suffix, "disable-wandb-random-suffix", group, "leave the run's id out of its name")
      .does_not_affect_results();
  options
      .option(wandb.run_id, "wandb-run-id", group,
              "id of the run there; unset: a new one, which RUN/wandb_run_id keeps for a --load into the same RUN")
      .does_not_affect_results();
  options.option(wandb.directory, "wandb-dir", group, "folder for the package's files; unset: RUN, as RUN/wandb")
      .path()
      .does_not_affect_results();
  options
      .option(wandb.host, "wandb-host", group, "address of a W&B server of your own; unset: WANDB_BASE_URL, or W&B's")
      .does_not_affect_results();
}

void TrackerOptions::visit_trackio(options::Options& options) {
  const char* const group = "trackio";
  options
      .option(use_trackio, "use-trackio", group,
              "write the metrics to trackio too, whose dashboard `trackio show` is; needs its package (in a clone "
              "`tools/setup.sh trackio`, with an installed wheel `pip install 'tandem[trackio]'`)")
      .does_not_affect_results();
  options.option(trackio.project, "trackio-project", group, "project that the run belongs to; unset: tandem")
      .does_not_affect_results();
  options
      .option(trackio.run_name, "trackio-run-name", group,
              "the beginning of the run's name, before its id; unset: the name of --save")
      .does_not_affect_results();
  options
      .option(trackio.space_id, "trackio-space-id", group,
              "Hugging Face Space OWNER/NAME that shows the run; needs HF_TOKEN or `hf auth login`. Unset: "
              "TRACKIO_SPACE_ID, or none, and nothing leaves the machine")
      .does_not_affect_results();
  options
      .option(trackio.directory, "trackio-dir", group,
              "folder for the package's databases; unset: TRACKIO_DIR, or the package's own")
      .path()
      .does_not_affect_results();
}

void TrackerOptions::visit_mlflow(options::Options& options) {
  const char* const group = "MLflow";
  options
      .option(
          use_mlflow, "use-mlflow", group,
          "send the metrics to MLflow too; needs its package (in a clone `tools/setup.sh mlflow`, with an installed "
          "wheel `pip install 'tandem[mlflow]'`) and --mlflow-tracking-uri or MLFLOW_TRACKING_URI")
      .does_not_affect_results();
  options
      .option(mlflow.tracking_uri, "mlflow-tracking-uri", group,
              "where the run is kept: http://HOST:PORT of a server, or sqlite:///FILE; unset: MLFLOW_TRACKING_URI. A "
              "password belongs into MLFLOW_TRACKING_PASSWORD")
      .does_not_affect_results();
  options
      .option(mlflow.experiment_name, "mlflow-experiment-name", group,
              "experiment that the run belongs to; unset: MLFLOW_EXPERIMENT_NAME, or tandem")
      .does_not_affect_results();
  options.option(mlflow.run_name, "mlflow-run-name", group, "name of the run there; unset: the name of --save")
      .does_not_affect_results();
}

}  // namespace tandem::config
