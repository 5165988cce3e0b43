// Declares the options for experiment trackers: Weights & Biases, trackio, MLflow. None of them affects results.
#pragma once

#include "options/options.h"
#include "text/trackers.h"

namespace tandem::config {

struct TrackerOptions {
  bool use_wandb = false, use_trackio = false, use_mlflow = false;
  text::WandbConfig wandb;
  text::TrackioConfig trackio;
  text::MlflowConfig mlflow;

  void visit(options::Options& options);

 private:
  void visit_wandb(options::Options& options);
  void visit_trackio(options::Options& options);
  void visit_mlflow(options::Options& options);
};

}  // namespace tandem::config
