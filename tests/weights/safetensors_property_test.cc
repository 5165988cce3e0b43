// Headers that are almost right: whatever is changed in one, the reader refuses it or hands out ranges that tile the
// data. Runs are named by their seed; TANDEM_SEED runs one of them again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "tests/weights/file_bytes.h"
#include "weights/safetensors.h"

namespace tandem::weights {
namespace {

constexpr int kNumRuns = 40;
constexpr int kMutantsPerRun = 250;

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : engine_(seed) {}

  size_t below(size_t bound) { return std::uniform_int_distribution<size_t>(0, bound - 1)(engine_); }

  // A header of a few tensors that lie one after the other, and the bytes that they take.
  std::pair<std::string, int64_t> good_header() {
    static const std::vector<std::pair<std::string, int64_t>> kDtypes = {
        {"F32", 32}, {"BF16", 16}, {"U8", 8}, {"I64", 64}, {"F16", 16}, {"F4", 4}, {"F6_E2M3", 6}};
    std::vector<std::string> entries;
    int64_t offset = 0;
    const size_t num_tensors = below(6);
    for (size_t i = 0; i < num_tensors; ++i) {
      const auto& [dtype, bits] = kDtypes[below(kDtypes.size())];
      const auto rows = static_cast<int64_t>(4 * below(4)), columns = static_cast<int64_t>(1 + below(5));
      const int64_t bytes = rows * columns * bits / 8;
      entries.push_back("\"tensor." + std::to_string(i) + "\":{\"dtype\":\"" + dtype + "\",\"shape\":[" +
                        std::to_string(rows) + "," + std::to_string(columns) + "],\"data_offsets\":[" +
                        std::to_string(offset) + "," + std::to_string(offset + bytes) + "]}");
      offset += bytes;
    }
    if (below(2) == 0) entries.push_back(R"("__metadata__":{"format":"pt"})");
    std::shuffle(entries.begin(), entries.end(), engine_);
    std::string header = "{";
    for (const std::string& entry : entries) header += (header.size() > 1 ? "," : "") + entry;
    return {header + "}" + std::string(below(9), ' '), offset};
  }

  std::string mutate(std::string text) {
    const size_t num_changes = 1 + below(3);
    for (size_t i = 0; i < num_changes; ++i) change(text);
    return text;
  }

 private:
  void change(std::string& text) {
    static const std::vector<std::string> kPieces = {"0",
                                                     "-1",
                                                     "18446744073709551615",
                                                     "9223372036854775807",
                                                     "4611686018427387904",
                                                     "1e2",
                                                     "1.5",
                                                     "null",
                                                     "true",
                                                     "[",
                                                     "]",
                                                     "{",
                                                     "}",
                                                     ",",
                                                     ":",
                                                     "\"",
                                                     "\\u0000",
                                                     "\\ud800",
                                                     "\xff",
                                                     "\xc3\xa9",
                                                     "F32",
                                                     "F4",
                                                     "shape",
                                                     "dtype",
                                                     "data_offsets",
                                                     "__metadata__",
                                                     "\"x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},",
                                                     "[[[[",
                                                     " "};
    if (text.empty()) {
      text = kPieces[below(kPieces.size())];
      return;
    }
    const size_t at = below(text.size());
    const size_t length = 1 + below(std::min<size_t>(text.size() - at, 12));
    switch (below(6)) {
      case 0: text[at] = static_cast<char>(below(256)); break;
      case 1: text.erase(at, length); break;
      case 2: text.insert(at, kPieces[below(kPieces.size())]); break;
      case 3: text.replace(at, length, kPieces[below(kPieces.size())]); break;
      case 4: text.insert(below(text.size()), text.substr(at, length)); break;
      default: change_digit(text, at); break;
    }
  }

  // Numbers decide what is in range: change those most.
  void change_digit(std::string& text, size_t from) {
    const size_t at = text.find_first_of("0123456789", from);
    if (at != std::string::npos) text[at] = static_cast<char>('0' + below(10));
  }

  std::mt19937_64 engine_;
};

// The promise of parse_safetensors_header(), checked without its own arithmetic.
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
  Mutator mutator(seed);
  for (int i = 0; i < kMutantsPerRun && !::testing::Test::HasFailure(); ++i) {
    const auto [good, data_bytes] = mutator.good_header();
    EXPECT_NO_THROW(expect_ranges_tile(parse_safetensors_header(good, data_bytes, "good"), data_bytes)) << good;
    const std::string mutant = mutator.mutate(good);
    SCOPED_TRACE(mutant);
    try {
      // A copy of exactly its size: the address sanitizer sees any read past the end.
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
  // Some changes are harmless (a space, a letter of a name): else the test would only see refusals.
  EXPECT_GT(num_accepted, 50);
}

// The same for whole files: the length in front, the header and the data's size may all lie.
TEST(SafetensorsProperty, MutatedFilesNeverReadOutside) {
  const TemporaryDirectory directory;
  const std::string path = directory / "mutant.safetensors";
  const std::string good = read_bytes("tests/golden/safetensors_good/two_tensors_metadata.safetensors");
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    write_bytes(path, Mutator(seed).mutate(good));
    try {
      const SafetensorsFile file(path);
      for (const auto& [name, info] : file.tensors()) {
        std::vector<std::byte> bytes(info.num_bytes());
        file.read(info, 0, bytes);
      }
    } catch (const UserError&) {
    }
  }
}

}  // namespace
}  // namespace tandem::weights
