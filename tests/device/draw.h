// Random test inputs as a function of a seed, the backends under test, and KV caches filled from lists of tokens.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <cstring>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/rng.h"
#include "device/backends.h"
#include "device/ops.h"
#include "device/ops_aten.h"
#include "device/registry.h"
#include "tandem/error.h"
#include "tests/device/hosted_ops.h"
#include "tests/device/reference.h"

namespace tandem::device {

class TestDraw {
 public:
  explicit TestDraw(uint64_t seed) : seed_(seed) {}

  double uniform() { return base::uniform(seed_, 0, counter_++); }
  int64_t integer(int64_t low, int64_t high) {  // both bounds are included
    return low + static_cast<int64_t>(uniform() * static_cast<double>(high - low + 1));
  }
  template <typename T>
  const T& choose(const std::vector<T>& from) {
    return from[static_cast<size_t>(integer(0, static_cast<int64_t>(from.size()) - 1))];
  }
  // Returns mean + scale * N(0, 1), rounded to the dtype.
  Tensor normal(at::IntArrayRef shape, at::ScalarType dtype, double mean = 0.0, double scale = 1.0) {
    const Tensor x = at::empty(shape, at::kFloat);
    float* data = x.mutable_data_ptr<float>();
    for (int64_t i = 0; i < x.numel(); ++i) {
      const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
      data[i] = static_cast<float>(mean + scale * radius * std::cos(6.283185307179586 * uniform()));
    }
    return x.to(dtype);
  }
  reference::Ids ids(int64_t size, int64_t low, int64_t high) {
    reference::Ids result;
    for (int64_t i = 0; i < size; ++i) result.push_back(static_cast<int32_t>(integer(low, high)));
    return result;
  }
  reference::Ids permutation(int64_t size) {
    reference::Ids result;
    for (int64_t i = 0; i < size; ++i) {
      result.push_back(static_cast<int32_t>(i));
      std::swap(result.back(), result[static_cast<size_t>(integer(0, i))]);
    }
    return result;
  }

 private:
  uint64_t seed_;
  uint64_t counter_ = 0;
};

inline Tensor to_tensor(const reference::Ids& ids) {
  const Tensor result = at::empty({static_cast<int64_t>(ids.size())}, at::kInt);
  std::copy(ids.begin(), ids.end(), result.mutable_data_ptr<int32_t>());
  return result;
}

inline reference::Values to_values(const Tensor& x) {
  const Tensor wide = x.detach().to(at::kDouble).contiguous();
  return {wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel()};
}

// Two tensors of one shape and dtype with the same bits.
inline bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor x = a.contiguous(), y = b.contiguous();
  return x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type() &&
         (x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0);
}

// Returns the instruction sets that this machine runs.
inline std::vector<std::string> cpu_isas() {
  std::string names = available_cpu_isas();
  for (char& c : names) c = c == ',' ? ' ' : c;
  std::istringstream in(names);
  std::vector<std::string> result;
  for (std::string name; in >> name;) result.push_back(name);
  return result;
}

inline bool is_module(const std::string& name) {
  const BackendRow* const row = find_backend(name);
  return row != nullptr && row->is_module();
}

// Returns whether a module's operations are those of LibTorch on the host (tests/pretend_device), where small shapes
// ask as much as the large ones for which a device has kernels of its own, and take a hundredth of the time.
inline bool is_pretended(const Ops& ops) { return ops.name().find("pretended device") != std::string::npos; }

// Returns the backends that are modules. The tests of each, whose names hold the backend's, are ctest entries of their
// own (tandem_module_tests).
inline std::vector<std::string> device_backends() {
  std::vector<std::string> names;
  for (const BackendRow& row : backends()) {
    if (row.is_module()) names.emplace_back(row.name);
  }
  return names;
}

// Returns `names` and behind them the backends that are modules.
inline std::vector<std::string> and_modules(std::vector<std::string> names) {
  for (const std::string& name : device_backends()) names.push_back(name);
  return names;
}

// Returns the CPU's instruction sets and the modules whose footprint says that they have it.
inline std::vector<std::string> backends_with(bool Footprint::*has) {
  std::vector<std::string> names = cpu_isas();
  for (const std::string& name : device_backends()) {
    if (footprint_of(name).*has) names.push_back(name);
  }
  return names;
}

// Returns every backend, each instruction set of the CPU's among them.
inline std::vector<std::string> all_backends() {
  std::vector<std::string> names = cpu_isas();
  names.emplace_back("aten");
  return and_modules(names);
}

// The widths of a product's matrix [N, K].
struct Widths {
  int64_t N, K;
};

// A backend, and the model's dtype in which it is tested.
struct BackendCase {
  std::string name;
  at::ScalarType dtype;
};
inline void PrintTo(const BackendCase& backend, std::ostream* out) { *out << backend.name << ' ' << backend.dtype; }

inline std::vector<BackendCase> in_both_dtypes(const std::vector<std::string>& names) {
  std::vector<BackendCase> result;
  for (const std::string& name : names)
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) result.push_back({name, dtype});
  return result;
}

// Says why this machine cannot test a backend; "" where it can.
inline const std::string& why_missing(const std::string& backend) {
  static std::map<std::string, std::string> reasons;
  const auto [found, is_new] = reasons.try_emplace(backend);
  if (is_new && is_module(backend)) {
    try {
      make_ops(parse_device(backend), {});
    } catch (const EnvironmentError& error) {
      found->second = error.what();
    }
  }
  return found->second;
}

// Makes operations that take host tensors, wherever they compute. Returns null if this machine lacks the backend.
inline std::unique_ptr<Ops> make_backend(const std::string& name, int num_threads) {
  if (!why_missing(name).empty()) return nullptr;
  if (name == "aten") return make_aten_ops(num_threads);
  if (!is_module(name)) return make_cpu_ops(name, num_threads);
  return std::make_unique<HostedOps>(make_ops(parse_device(name), {.num_threads = num_threads}));
}

}  // namespace tandem::device
