// Sends metrics to another program's package, TensorBoard's or a tracker's (trackers.h), which runs in a Python child
// process.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/json.h"
#include "worker/worker_config.h"

namespace tandem::text {

// The package that metrics go to, and how its process is asked.
struct SinkTarget {
  std::string name;                 // "the TensorBoard writer"
  std::string what;                 // warnings are about this: "TensorBoard events in DIR"
  std::string worker;               // the module of tandem_worker
  worker::WorkerConfig config;      // config.deadline_s holds for one event
  base::Json open;                  // arguments of its first call
  double finish_s = 0;              // the limit of its last call; 0: it has none
  std::string dropped_metric = {};  // the run's records count undelivered ones by this name; empty: they do not
};

// Returns the target of an event file in `directory`.
SinkTarget tensorboard_target(const worker::WorkerConfig& config, const std::string& directory);

// write() returns at once; a thread of its own talks with the child. Metrics are not worth a run: a child that dies or
// hangs is replaced, with one warning, and when that does not help either (or events come faster than they go) events
// are dropped and counted.
class MetricSink {
 public:
  // EnvironmentError when the first child cannot start or refuses what it is to open.
  explicit MetricSink(const SinkTarget& target);
  // Waits for what is queued, a few seconds at most, and for the last call.
  ~MetricSink();

  void write(int64_t step, const std::map<std::string, double>& values);
  void flush(double deadline_s);  // returns when all is delivered or dropped, or at the deadline
  int64_t dropped() const;        // events that were not delivered
  const std::string& dropped_metric() const;
  int64_t restarts() const;
  int64_t process_id() const;  // the child's; -1 while there is none

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::text
