// Encodes numbers, texts and lists as bytes for another process of the same build, and decodes them bit for bit. The
// reader does not trust its input: it believes no length before the bytes for it are there, and a checksum finds
// changes made on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tandem::base {

template <typename T>
concept WireNumber = (std::is_arithmetic_v<T> || std::is_enum_v<T>)&&!std::is_same_v<T, bool>;

class WireWriter {
 public:
  void number(WireNumber auto value) { bytes(&value, sizeof value); }
  void flag(bool value) { number(static_cast<uint8_t>(value ? 1 : 0)); }
  void count(size_t value) { number(static_cast<uint64_t>(value)); }
  void text(std::string_view value) {
    count(value.size());
    bytes(value.data(), value.size());
  }
  template <WireNumber T>
  void list(const std::vector<T>& values) {
    count(values.size());
    bytes(values.data(), values.size() * sizeof(T));
  }

  const std::string& payload() const { return payload_; }

 private:
  void bytes(const void* from, size_t size) {
    if (size > 0) payload_.append(static_cast<const char*>(from), size);
  }

  std::string payload_;
};

// Takes values out in the order in which a WireWriter put them in. Throws EnvironmentError if the payload holds
// something else.
class WireReader {
 public:
  explicit WireReader(std::string_view payload) : left_(payload) {}  // borrowed

  template <WireNumber T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  bool flag();
  // Returns the number of elements that follow, each of at least `least_bytes` bytes.
  size_t count(size_t least_bytes);
  std::string text() { return std::string(take(count(1))); }
  template <WireNumber T>
  std::vector<T> list() {
    std::vector<T> values(count(sizeof(T)));
    const std::string_view from = take(values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), from.data(), from.size());
    return values;
  }
  // Returns one of the first `num_values` values of an enumeration.
  template <typename Enum>
  Enum choice(std::underlying_type_t<Enum> num_values) {
    const auto value = number<std::underlying_type_t<Enum>>();
    if (value >= num_values) refuse("a choice that there is not");
    return static_cast<Enum>(value);
  }
  // Throws unless everything was taken.
  void finish() const;
  [[noreturn]] static void refuse(const std::string& what);

 private:
  std::string_view take(size_t size);

  std::string_view left_;
};

// sealed() puts a format number, which changes when the format does, and a checksum before a payload; unsealed()
// returns the payload within such a message. It throws EnvironmentError for another format or for changed bytes.
std::string sealed(std::string_view payload, uint32_t format);
std::string_view unsealed(std::string_view message, uint32_t format);
// Returns the format number that a message says it has, or 0 if it is too short to say one.
uint32_t format_of(std::string_view message);

}  // namespace tandem::base
