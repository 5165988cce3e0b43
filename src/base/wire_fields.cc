#include "base/wire_fields.h"

namespace tandem::base {

namespace {

// JSON text has no infinity and no bits of a NaN, and forgets which type a number was: scalars go as they are.
enum class Kind : uint8_t { kNull, kFlag, kSigned, kUnsigned, kFloat, kText, kObjectOrArray };
constexpr uint8_t kNumKinds = 7;

Kind kind_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null: return Kind::kNull;
    case Json::value_t::boolean: return Kind::kFlag;
    case Json::value_t::number_integer: return Kind::kSigned;
    case Json::value_t::number_unsigned: return Kind::kUnsigned;
    case Json::value_t::number_float: return Kind::kFloat;
    case Json::value_t::string: return Kind::kText;
    default: return Kind::kObjectOrArray;
  }
}

}  // namespace

void FieldWriter::write(const Json& value) {
  const Kind kind = kind_of(value);
  out_.number(kind);
  switch (kind) {
    case Kind::kNull: return;
    case Kind::kFlag: return out_.flag(value.get<bool>());
    case Kind::kSigned: return out_.number(value.get<int64_t>());
    case Kind::kUnsigned: return out_.number(value.get<uint64_t>());
    case Kind::kFloat: return out_.number(value.get<double>());
    case Kind::kText: return out_.text(value.get_ref<const std::string&>());
    case Kind::kObjectOrArray: return out_.text(dump_json(value));
  }
}

void FieldReader::read(Json& value) {
  switch (in_.choice<Kind>(kNumKinds)) {
    case Kind::kNull: value = nullptr; return;
    case Kind::kFlag: value = in_.flag(); return;
    case Kind::kSigned: value = in_.number<int64_t>(); return;
    case Kind::kUnsigned: value = in_.number<uint64_t>(); return;
    case Kind::kFloat: value = in_.number<double>(); return;
    case Kind::kText: value = in_.text(); return;
    case Kind::kObjectOrArray: break;
  }
  try {
    value = parse_json(in_.text(), "a message between processes");
  } catch (const UserError&) {
    WireReader::refuse("a text that is no JSON");
  }
}

}  // namespace tandem::base
