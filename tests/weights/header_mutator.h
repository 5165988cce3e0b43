// Makes safetensors headers that are right, and then almost right. They are drawn from a seed, which names them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace tandem::weights {

class HeaderMutator {
 public:
  explicit HeaderMutator(uint64_t seed) : engine_(seed) {}

  size_t below(size_t bound) { return std::uniform_int_distribution<size_t>(0, bound - 1)(engine_); }

  // Returns a header of a few tensors that lie one after the other, and the bytes that they take.
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
    static const std::vector<std::string> kPieces = {
        "0", "-1", "18446744073709551615", "9223372036854775807", "4611686018427387904", "1e2", "1.5", "null", "true",
        "[", "]", "{", "}", ",", ":", "\"", "\\u0000", "\\ud800", "\xff", "\xc3\xa9", "F32", "F4", "shape", "dtype",
        "data_offsets", "__metadata__", "[[[[", " ", "\n", "0,",
        // The official reader takes these and ours refuses them.
        R"("x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)", R"("y":["U8",[0],[0,0]],)", R"("more":[{}],)",
        R"("__metadata__":null,)", R"("__metadata__":{"a":"1","a":"2"},)"};
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

  // Changes a digit: numbers decide which ranges are valid, so most mutations are here.
  void change_digit(std::string& text, size_t from) {
    const size_t at = text.find_first_of("0123456789", from);
    if (at != std::string::npos) text[at] = static_cast<char>('0' + below(10));
  }

  std::mt19937_64 engine_;
};

}  // namespace tandem::weights
