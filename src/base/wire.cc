#include "base/wire.h"

#include <fmt/format.h>

#include "base/checksum.h"
#include "tandem/error.h"

namespace tandem::base {

namespace {

constexpr size_t kFormatBytes = sizeof(uint32_t), kChecksumBytes = 32;

}  // namespace

bool WireReader::flag() {
  const auto value = number<uint8_t>();
  if (value > 1) refuse("a flag that is neither 0 nor 1");
  return value == 1;
}

size_t WireReader::count(size_t least_bytes) {
  const auto value = number<uint64_t>();
  if (value > left_.size() / least_bytes) refuse("a length beyond its end");
  return static_cast<size_t>(value);
}

std::string_view WireReader::take(size_t size) {
  if (size > left_.size()) refuse("an early end");
  const std::string_view taken = left_.substr(0, size);
  left_.remove_prefix(size);
  return taken;
}

void WireReader::finish() const {
  if (!left_.empty()) refuse("bytes behind its end");
}

void WireReader::refuse(const std::string& what) {
  throw EnvironmentError(
      fmt::format("another rank's message has {}: start all ranks with the same build, and see whether their network "
                  "changes bytes",
                  what));
}

std::string sealed(std::string_view payload, uint32_t format) {
  std::string message;
  message.reserve(kFormatBytes + payload.size() + kChecksumBytes);
  message.append(reinterpret_cast<const char*>(&format), kFormatBytes);
  message += payload;
  message += checksum(message);
  return message;
}

uint32_t format_of(std::string_view message) {
  uint32_t format = 0;
  if (message.size() >= kFormatBytes) std::memcpy(&format, message.data(), kFormatBytes);
  return format;
}

std::string_view unsealed(std::string_view message, uint32_t format) {
  if (message.size() < kFormatBytes + kChecksumBytes) WireReader::refuse("an early end");
  const std::string_view checked = message.substr(0, message.size() - kChecksumBytes);
  if (checksum(checked) != message.substr(checked.size())) WireReader::refuse("another checksum than its bytes");
  const uint32_t found = format_of(checked);
  if (found != format) WireReader::refuse(fmt::format("format {}, and this one's is {}", found, format));
  return checked.substr(kFormatBytes);
}

}  // namespace tandem::base
