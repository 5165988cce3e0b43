#include "run/training_traffic.h"

#include <cstdint>

namespace tandem::run {

namespace {

constexpr double kGiB = int64_t{1} << 30;

}  // namespace

TrainingTraffic::TrainingTraffic(const mesh::Mesh& mesh) : mesh_(mesh), before_(now()) {}

device::Traffic TrainingTraffic::now() const {
  const device::Traffic data = mesh_.data().device.traffic(), tensor = mesh_.tensor().device.traffic();
  return {.sent_bytes = data.sent_bytes + tensor.sent_bytes, .wait_s = data.wait_s + tensor.wait_s};
}

report::Metrics TrainingTraffic::metrics() const {
  if (mesh_.is_alone()) return {};
  const device::Traffic after = now();
  return {{"perf/train_comm_gib", static_cast<double>(after.sent_bytes - before_.sent_bytes) / kGiB},
          {"perf/train_comm_wait_time", after.wait_s - before_.wait_s}};
}

}  // namespace tandem::run
