#include "bench/table.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <utility>

#include "base/message_text.h"
#include "base/standard_output.h"

namespace tandem::bench {

namespace {

std::string time_text(double seconds) {
  return seconds < 10.0 ? fmt::format("{:.2f} ms", seconds * 1e3) : fmt::format("{:.2f} s", seconds);
}

std::string rate_text(double per_second) {
  return per_second < 100.0 ? fmt::format("{:.1f}", per_second) : base::with_commas(std::llround(per_second));
}

// Returns "36.9 GB" or "108 M": three digits and the power of 1000 that they are counted in.
std::string amount_text(double amount, const char* unit) {
  constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P"};
  size_t prefix = 0;
  for (; amount >= 999.5 && prefix + 1 < std::size(kPrefixes); ++prefix) amount /= 1000.0;
  return fmt::format("{:.{}f} {}{}", amount, amount < 9.995 ? 2 : (amount < 99.95 ? 1 : 0), kPrefixes[prefix], unit);
}

}  // namespace

void BenchTable::line(const std::string& text) const {
  if (!prints_) return;
  base::write_to_standard_output(text + "\n");
}

void BenchTable::add(const Measurement& m) {
  constexpr const char* kColumns = "{:<42} {:>11} {:>9} {:>8} {:>10} {:>11} {:>6}";
  if (!std::exchange(has_header_, true)) {
    line(fmt::format(kColumns, "", "time", "tokens/s", "bytes", "operations", "limit", "share"));
  }
  const double share = m.work.limit_seconds / m.seconds;
  line(fmt::format(kColumns, m.what + (m.detail.empty() ? "" : ", " + m.detail), time_text(m.seconds),
                   m.tokens > 0 ? rate_text(m.tokens / m.seconds) : "", amount_text(m.work.bytes, "B"),
                   m.work.flops > 0 ? amount_text(m.work.flops, "") : "", time_text(m.work.limit_seconds),
                   fmt::format("{:.0f} %", 100.0 * share)));
  if (!m.note.empty()) line("  " + m.note);
  base::Json entry = base::Json::object();
  entry["what"] = m.what;
  entry["detail"] = m.detail;
  entry["seconds"] = m.seconds;
  if (m.tokens > 0) {
    entry["tokens"] = m.tokens;
    entry["tokens_per_s"] = m.tokens / m.seconds;
  }
  entry["bytes"] = m.work.bytes;
  entry["flops"] = m.work.flops;
  entry["limit_seconds"] = m.work.limit_seconds;
  entry["share_of_limit"] = share;
  for (const auto& [name, value] : m.figures) entry[name] = value;
  record_["measurements"].push_back(std::move(entry));
}

base::Json ceilings_json(const Ceilings& ceilings) {
  base::Json json = base::Json::object();
  json["copy_bytes_per_s"] = ceilings.copy_bytes_per_s;
  json["read_bytes_per_s"] = ceilings.read_bytes_per_s;
  json["matmul_flops_per_s"] = ceilings.flops_per_s;
  return json;
}

}  // namespace tandem::bench
