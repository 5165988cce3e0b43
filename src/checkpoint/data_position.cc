#include "checkpoint/data_position.h"

#include <fmt/format.h>

#include <span>

#include "base/check.h"

namespace tandem::checkpoint {

namespace {

constexpr const char* kInFlight = "in_flight";  // a tensor of bytes

}  // namespace

SavedTensor in_flight_tensor(const std::string& in_flight) {
  const auto size = static_cast<int64_t>(in_flight.size());
  return {.bytes = {.name = kInFlight, .dtype = "U8", .shape = {size}, .bytes = std::as_bytes(std::span(in_flight))},
          .whole_shape = {size},
          .begin = {0}};
}

std::optional<std::string> in_flight_of(const Checkpoint& checkpoint) {
  const auto found = checkpoint.manifest().tensors.find(kInFlight);
  if (found == checkpoint.manifest().tensors.end()) return std::nullopt;
  const ManifestTensor& tensor = found->second;
  TANDEM_USER_CHECK(
      tensor.dtype == "U8" && tensor.shape.size() == 1,
      fmt::format("{}: the tensor {} is none of bytes: it was changed by hand", checkpoint.directory(), kInFlight));
  std::string bytes(static_cast<size_t>(tensor.shape[0]), '\0');
  checkpoint.read(kInFlight, "U8", {0}, tensor.shape, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

}  // namespace tandem::checkpoint
