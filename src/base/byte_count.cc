#include "base/byte_count.h"

#include <charconv>
#include <cmath>
#include <string>

namespace tandem::base {
namespace {

// Returns the bytes of a unit in capital letters; 0 if it is unknown.
double bytes_of(const std::string& unit) {
  if (unit.empty() || unit == "B") return 1.0;
  const size_t power = std::string_view("KMGT").find(unit.front());
  if (power == std::string_view::npos) return 0.0;
  const std::string rest = unit.substr(1);
  if (rest.empty() || rest == "IB") return std::pow(1024.0, static_cast<double>(power + 1));
  return rest == "B" ? std::pow(1000.0, static_cast<double>(power + 1)) : 0.0;
}

}  // namespace

std::optional<int64_t> parse_byte_count(std::string_view text) {
  int64_t whole = 0;
  const char* const end = text.data() + text.size();
  if (const auto read = std::from_chars(text.data(), end, whole); read.ec == std::errc() && read.ptr == end) {
    return whole >= 0 ? std::optional(whole) : std::nullopt;
  }
  double number = 0.0;
  const auto [after, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(number) || number < 0.0) return std::nullopt;
  std::string unit;
  for (const char c : text.substr(static_cast<size_t>(after - text.data()))) {
    if (c == ' ' && unit.empty()) continue;
    unit += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  }
  const double bytes = number * bytes_of(unit);
  const bool is_count = bytes == std::floor(bytes) && bytes < std::ldexp(1.0, 63) && (bytes > 0.0 || number == 0.0);
  return is_count && bytes_of(unit) > 0.0 ? std::optional(static_cast<int64_t>(bytes)) : std::nullopt;
}

}  // namespace tandem::base
