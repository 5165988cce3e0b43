#include "reward/grade_wire.h"

#include <utility>

#include "base/check.h"

namespace tandem::reward {

namespace {

using base::Json;
using base::WireReader;
using base::WireWriter;

// A text's length takes so much, which is the least that an entry of a map takes.
constexpr size_t kLengthBytes = sizeof(uint64_t);

enum class Scalar : uint8_t { kNull, kFlag, kSigned, kUnsigned, kFloat, kText };
constexpr uint8_t kNumScalars = 6;

void write_scalar(const Json& value, WireWriter& out) {
  switch (value.type()) {
    case Json::value_t::null: out.number(Scalar::kNull); return;
    case Json::value_t::boolean:
      out.number(Scalar::kFlag);
      out.flag(value.get<bool>());
      return;
    case Json::value_t::number_integer:
      out.number(Scalar::kSigned);
      out.number(value.get<int64_t>());
      return;
    case Json::value_t::number_unsigned:
      out.number(Scalar::kUnsigned);
      out.number(value.get<uint64_t>());
      return;
    case Json::value_t::number_float:
      out.number(Scalar::kFloat);
      out.number(value.get<double>());
      return;
    case Json::value_t::string:
      out.number(Scalar::kText);
      out.text(value.get_ref<const std::string&>());
      return;
    default: TANDEM_CHECK(false, "a column's value is no scalar");
  }
}

Json read_scalar(WireReader& in) {
  switch (in.choice<Scalar>(kNumScalars)) {
    case Scalar::kNull: return nullptr;
    case Scalar::kFlag: return in.flag();
    case Scalar::kSigned: return in.number<int64_t>();
    case Scalar::kUnsigned: return in.number<uint64_t>();
    case Scalar::kFloat: return in.number<double>();
    case Scalar::kText: return in.text();
  }
  WireReader::refuse("a value of no type");
}

// A flag says whether there is one.
template <typename T, typename Write>
void write_optional(const std::optional<T>& value, WireWriter& out, Write write) {
  out.flag(value.has_value());
  if (value) write(*value);
}

template <typename T, typename Write>
void write_map(const std::map<std::string, T>& values, WireWriter& out, Write write) {
  out.count(values.size());
  for (const auto& [name, value] : values) {
    out.text(name);
    write(value);
  }
}

template <typename T, typename Read>
std::map<std::string, T> read_map(WireReader& in, Read read) {
  std::map<std::string, T> values;
  for (size_t left = in.count(kLengthBytes); left > 0; --left) {
    std::string name = in.text();
    T value = read();
    if (!values.emplace(std::move(name), std::move(value)).second) WireReader::refuse("a name twice");
  }
  return values;
}

}  // namespace

void write_grade(const Grade& grade, WireWriter& out) {
  const auto number = [&](double value) { out.number(value); };
  out.number(grade.sample_id);
  out.number(grade.reward);
  out.flag(grade.failed);
  out.text(grade.reason_class);
  out.text(grade.reason);
  write_map(grade.extras, out, number);
  write_optional(grade.remove_sample, out, [&](bool value) { out.flag(value); });
  write_optional(grade.loss_mask, out, [&](const std::vector<uint8_t>& mask) { out.list(mask); });
  write_optional(grade.status, out, [&](const std::string& status) { out.text(status); });
  write_map(grade.columns, out, [&](const Json& value) { write_scalar(value, out); });
  write_map(grade.metrics, out, [&](const std::vector<double>& values) { out.list(values); });
  out.count(grade.parts.size());
  for (const RewardPart& part : grade.parts) {
    out.text(part.name);
    write_optional(part.reward, out, number);
  }
}

Grade read_grade(WireReader& in) {
  Grade grade;
  grade.sample_id = in.number<uint64_t>();
  grade.reward = in.number<double>();
  grade.failed = in.flag();
  grade.reason_class = in.text();
  grade.reason = in.text();
  grade.extras = read_map<double>(in, [&] { return in.number<double>(); });
  if (in.flag()) grade.remove_sample = in.flag();
  if (in.flag()) grade.loss_mask = in.list<uint8_t>();
  if (in.flag()) grade.status = in.text();
  grade.columns = read_map<Json>(in, [&] { return read_scalar(in); });
  grade.metrics = read_map<std::vector<double>>(in, [&] { return in.list<double>(); });
  grade.parts.resize(in.count(kLengthBytes + 1));
  for (RewardPart& part : grade.parts) {
    part.name = in.text();
    if (in.flag()) part.reward = in.number<double>();
  }
  return grade;
}

}  // namespace tandem::reward
