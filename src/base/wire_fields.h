// One list of a message's fields for both directions. A type that goes over the wire has
//
//   static void fields(auto& wire, auto& m) { wire(m.a, m.b); }
//
// and a FieldWriter writes what the list names, while a FieldReader reads it. Numbers, texts, JSON, optional values,
// vectors, sets and maps of these go by themselves. An enumeration is named with how many values it has:
// wire.choice(m.kind, 3). Where a side needs more than a field, `wire.kReads` says which side this is.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"
#include "base/wire.h"
#include "tandem/error.h"

namespace tandem::base {

class FieldWriter {
 public:
  static constexpr bool kReads = false;
  explicit FieldWriter(WireWriter& out) : out_(out) {}  // borrowed

  template <typename... Fields>
  void operator()(const Fields&... values) {
    (write(values), ...);
  }
  template <typename Enum>
  void choice(const Enum& value, std::underlying_type_t<Enum> /*num_values*/) {
    out_.number(value);
  }

 private:
  void write(const bool& value) { out_.flag(value); }
  void write(const WireNumber auto& value) {
    static_assert(!std::is_enum_v<std::remove_cvref_t<decltype(value)>>, "say wire.choice(value, num_values)");
    out_.number(value);
  }
  void write(const std::string& value) { out_.text(value); }
  void write(const Json& value);
  template <typename T>
  void write(const std::optional<T>& value) {
    out_.flag(value.has_value());
    if (value) write(*value);
  }
  template <typename T>
  void write(const std::vector<T>& values) {
    if constexpr (WireNumber<T>) {
      out_.list(values);
    } else {
      write_each(values);
    }
  }
  template <typename T>
  void write(const std::set<T>& values) {
    write_each(values);
  }
  template <typename K, typename T>
  void write(const std::map<K, T>& values) {
    write_each(values);
  }
  template <typename A, typename B>
  void write(const std::pair<A, B>& value) {
    write(value.first);
    write(value.second);
  }
  template <typename T>
  requires requires(FieldWriter& wire, const T& value) { T::fields(wire, value); }
  void write(const T& value) { T::fields(*this, value); }
  void write_each(const auto& values) {
    out_.count(values.size());
    for (const auto& value : values) write(value);
  }

  WireWriter& out_;
};

// EnvironmentError where the payload has something else than these fields.
class FieldReader {
 public:
  static constexpr bool kReads = true;
  explicit FieldReader(WireReader& in) : in_(in) {}  // borrowed

  template <typename... Fields>
  void operator()(Fields&... values) {
    (read(values), ...);
  }
  template <typename Enum>
  void choice(Enum& value, std::underlying_type_t<Enum> num_values) {
    value = in_.choice<Enum>(num_values);
  }

 private:
  void read(bool& value) { value = in_.flag(); }
  template <WireNumber T>
  void read(T& value) {
    static_assert(!std::is_enum_v<T>, "say wire.choice(value, num_values)");
    value = in_.number<T>();
  }
  void read(std::string& value) { value = in_.text(); }
  void read(Json& value);
  template <typename T>
  void read(std::optional<T>& value) {
    value.reset();
    if (in_.flag()) read(value.emplace());
  }
  template <typename T>
  void read(std::vector<T>& values) {
    if constexpr (WireNumber<T>) {
      values = in_.list<T>();
    } else {
      values.clear();
      for (size_t left = in_.count(1); left > 0; --left) read(values.emplace_back());
    }
  }
  template <typename T>
  void read(std::set<T>& values) {
    read_each<T>(values);
  }
  template <typename K, typename T>
  void read(std::map<K, T>& values) {
    read_each<std::pair<K, T>>(values);
  }
  template <typename A, typename B>
  void read(std::pair<A, B>& value) {
    read(value.first);
    read(value.second);
  }
  template <typename T>
  requires requires(FieldReader& wire, T& value) { T::fields(wire, value); }
  void read(T& value) { T::fields(*this, value); }
  template <typename T>
  void read_each(auto& values) {
    values.clear();
    for (size_t left = in_.count(1); left > 0; --left) {
      T value{};
      read(value);
      if (!values.insert(std::move(value)).second) WireReader::refuse("a name twice");
    }
  }

  WireReader& in_;
};

// A message as bytes with its format and a checksum (base::sealed), and back. EnvironmentError for bytes that are no
// such message, whatever they are.
template <typename Message>
std::string packed(const Message& message, uint32_t format) {
  WireWriter out;
  FieldWriter wire(out);
  wire(message);
  return sealed(out.payload(), format);
}
template <typename Message>
Message unpacked(std::string_view bytes, uint32_t format) {
  WireReader in(unsealed(bytes, format));
  Message message{};
  FieldReader wire(in);
  wire(message);
  in.finish();
  return message;
}

// A variant of such types goes as its alternative's place and that one's fields.
template <typename Variant>
struct OneOf {
  Variant value;

  static void fields(auto& wire, auto& m) {
    auto place = static_cast<uint32_t>(m.value.index());
    wire(place);
    if constexpr (std::remove_cvref_t<decltype(wire)>::kReads) {
      if (place >= std::variant_size_v<Variant>) WireReader::refuse("a message that there is not");
      [&]<size_t... kPlaces>(std::index_sequence<kPlaces...>) {
        ((place == kPlaces ? wire(m.value.template emplace<kPlaces>()) : void()), ...);
      }
      (std::make_index_sequence<std::variant_size_v<Variant>>());
    } else {
      std::visit([&](const auto& alternative) { wire(alternative); }, m.value);
    }
  }
};

}  // namespace tandem::base
