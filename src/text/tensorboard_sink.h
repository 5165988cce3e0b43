// Scalars into a TensorBoard event file, written by a Python child process with TensorBoard's own writer.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "text/text_worker.h"

namespace tandem::text {

// write() returns at once; a thread of its own talks with the child. Metrics are not worth a run: a child that dies or
// hangs is replaced, with one warning, and when that does not help either (or events come faster than they go) events
// are dropped and counted.
class TensorBoardSink {
 public:
  // EnvironmentError when the first child cannot start or `directory` cannot be written. config.deadline_s holds for
  // one event.
  TensorBoardSink(const WorkerConfig& config, const std::string& directory);
  // Waits for what is queued, a few seconds at most.
  ~TensorBoardSink();

  void write(int64_t step, const std::map<std::string, double>& values);
  void flush(double deadline_s);  // returns when all is in the file or dropped, or at the deadline
  int64_t dropped() const;        // events that are not in the file
  int64_t restarts() const;
  int64_t process_id() const;  // of the child; -1 while there is none

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::text
