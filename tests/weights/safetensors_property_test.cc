// Headers that are almost right: the reader refuses each or returns ranges that tile the data. Runs are named by their
// seed; TANDEM_SEED repeats one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tandem/error.h"
#include "tests/weights/header_mutator.h"
#include "weights/safetensors.h"

namespace tandem::weights {
namespace {

constexpr int kNumRuns = 40;
constexpr int kMutantsPerRun = 250;

// Checks the promise of parse_safetensors_header() without its own arithmetic.
void expect_ranges_tile(const SafetensorsHeader& header, int64_t data_bytes) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const auto& [name, info] : header.tensors) {
    ranges.emplace_back(info.begin_byte, info.end_byte);
    long double bits = static_cast<long double>(safetensors_dtype_bits(info.dtype));
    for (const int64_t dim : info.shape) bits *= static_cast<long double>(dim);
    EXPECT_EQ(bits, 8.0L * static_cast<long double>(info.num_bytes())) << name;
  }
  std::sort(ranges.begin(), ranges.end());
  int64_t end = 0;
  for (const auto& [range_begin, range_end] : ranges) {
    EXPECT_EQ(range_begin, end);
    EXPECT_GE(range_end, range_begin);
    end = range_end;
  }
  EXPECT_EQ(end, data_bytes);
}

void run(uint64_t seed, int& num_accepted) {
  SCOPED_TRACE("TANDEM_SEED=" + std::to_string(seed));
  HeaderMutator mutator(seed);
  for (int i = 0; i < kMutantsPerRun && !::testing::Test::HasFailure(); ++i) {
    const auto [good, data_bytes] = mutator.good_header();
    EXPECT_NO_THROW(expect_ranges_tile(parse_safetensors_header(good, data_bytes, "good"), data_bytes)) << good;
    const std::string mutant = mutator.mutate(good);
    SCOPED_TRACE(mutant);
    try {
      // The copy has exactly its size, so the address sanitizer sees any read past the end.
      const std::vector<char> exact(mutant.begin(), mutant.end());
      expect_ranges_tile(parse_safetensors_header({exact.data(), exact.size()}, data_bytes, "mutant"), data_bytes);
      ++num_accepted;
    } catch (const UserError&) {
    }
  }
}

TEST(SafetensorsProperty, MutatedHeadersAreRefusedOrStayInRange) {
  int num_accepted = 0;
  if (const char* seed = std::getenv("TANDEM_SEED")) {
    run(std::strtoull(seed, nullptr, 10), num_accepted);
    return;
  }
  for (uint64_t seed = 1; seed <= kNumRuns; ++seed) run(seed, num_accepted);
  // Some changes are harmless (a space, a letter of a name), so that the test sees more than refusals.
  EXPECT_GT(num_accepted, 50);
}

}  // namespace
}  // namespace tandem::weights
