// Counts what the ranks that train together exchange.
#pragma once

#include "device/communicator.h"
#include "mesh/mesh.h"
#include "report/report.h"

namespace tandem::run {

class TrainingTraffic {
 public:
  // Counts from here on. The mesh is borrowed.
  explicit TrainingTraffic(const mesh::Mesh& mesh);

  // Returns perf/train_comm_gib and perf/train_comm_wait_time of this rank's device; nothing where it trains alone.
  report::Metrics metrics() const;

 private:
  device::Traffic now() const;

  const mesh::Mesh& mesh_;
  const device::Traffic before_;
};

}  // namespace tandem::run
