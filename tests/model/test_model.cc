#include "tests/model/test_model.h"

#include <map>
#include <mutex>

#include "device/ops_aten.h"
#include "model/registry.h"
#include "tests/model/random_weights.h"

namespace tandem::model {

namespace {

TestModel with_store(const ModelConfig& config, at::ScalarType dtype) {
  return {.config = config, .store = std::make_unique<weights::WeightStore>(build_layout(config), dtype), .model = {}};
}

}  // namespace

const device::Ops& test_ops(int num_threads) {
  static std::mutex mutex;  // ranks of a test may be threads
  static std::map<int, std::unique_ptr<device::Ops>> ops_by_threads;
  const std::scoped_lock lock(mutex);
  std::unique_ptr<device::Ops>& ops = ops_by_threads[num_threads];
  if (ops == nullptr) ops = device::make_cpu_ops("auto", num_threads);
  return *ops;
}

const device::Ops& reference_ops() {
  static const std::unique_ptr<device::Ops> ops = device::make_aten_ops(2);
  return *ops;
}

void TestModel::change_weights(uint64_t seed) {
  weights::initialize_random(*store, kSmallInitializerRange, seed);
  store->publish();
}

TestModel random_model(const ModelConfig& config, const device::Ops& ops) {
  TestModel m = with_store(config, config.dtype == Dtype::kFloat32 ? at::kFloat : at::kBFloat16);
  draw_weights(*m.store, kSmallInitializerRange, 3);
  m.model = make_model(m.config, m.store->view(), ops);
  return m;
}

TestModel load_model(const std::string& directory, const device::Ops& ops) {
  TestModel m = with_store(read_model_config(directory), at::kFloat);
  weights::load_hf_checkpoint(directory, *m.store);
  m.model = make_model(m.config, m.store->view(), ops);
  return m;
}

}  // namespace tandem::model
