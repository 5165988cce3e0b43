// Builds rotary pages on first use.
#include "device/cpu/rope_table.h"

#include <cmath>

#include "device/rope_frequencies.h"

namespace tandem::device::cpu {

std::unique_ptr<float[]> RopeTable::Pages::build(int64_t page) const {
  const int64_t half = head_dim / 2;
  auto values = std::make_unique<float[]>(static_cast<size_t>(kPagePositions * head_dim));
  const std::vector<float> frequencies = rope_frequencies(head_dim, theta, factors);
  for (int64_t i = 0; i < half; ++i) {
    const float frequency = frequencies[static_cast<size_t>(i)];
    for (int64_t p = 0; p < kPagePositions; ++p) {
      const float angle = static_cast<float>(page * kPagePositions + p) * frequency;
      values[static_cast<size_t>(p * head_dim + i)] = static_cast<float>(std::cos(static_cast<double>(angle)));
      values[static_cast<size_t>(p * head_dim + half + i)] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
  return values;
}

RopeTable::Pages& RopeTable::pages_for(int64_t head_dim, double theta, const std::vector<float>& factors) {
  for (const auto& table : tables_)
    if (table->head_dim == head_dim && table->theta == theta && table->factors == factors) return *table;
  tables_.push_back(std::make_unique<Pages>(Pages{head_dim, theta, factors, {}}));
  return *tables_.back();
}

std::vector<const float*> RopeTable::rows(const int32_t* positions, int64_t n, int64_t head_dim, double theta,
                                          const std::vector<float>& factors) {
  Pages& table = pages_for(head_dim, theta, factors);
  std::vector<const float*> rows(static_cast<size_t>(n));
  for (int64_t t = 0; t < n; ++t) {
    const auto page = static_cast<size_t>(positions[t] / kPagePositions);
    if (page >= table.pages.size()) table.pages.resize(page + 1);
    if (!table.pages[page]) table.pages[page] = table.build(static_cast<int64_t>(page));
    rows[static_cast<size_t>(t)] = table.pages[page].get() + positions[t] % kPagePositions * head_dim;
  }
  return rows;
}

}  // namespace tandem::device::cpu
