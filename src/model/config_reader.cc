#include "model/config_reader.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"

namespace tandem::model {

using base::Json;

ConfigReader::ConfigReader(const Json& object, std::string name) : object_(&object), name_(std::move(name)) {
  TANDEM_USER_CHECK(object.is_object(), name_ + ": the file must hold one JSON object; take it from the model's",
                    "publisher again");
}

void ConfigReader::refuse(const std::string& key, const std::string& what_and_remedy) const {
  throw UserError(fmt::format("{}: {} {}", name_, key, what_and_remedy));
}

const Json* ConfigReader::find(const std::string& key) const {
  const auto it = object_->find(key);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

const Json& ConfigReader::required(const std::string& key) const {
  const Json* value = find(key);
  if (value == nullptr) refuse(key, "is missing; add it as the model's publisher has it");
  return *value;
}

int64_t ConfigReader::required_int(const std::string& key, int64_t low, int64_t high) const {
  return as_int(key, required(key), low, high);
}

double ConfigReader::required_number(const std::string& key) const { return as_number(key, required(key)); }

double ConfigReader::number_or(const std::string& key, double fallback) const {
  const Json* value = find(key);
  return value == nullptr ? fallback : as_number(key, *value);
}

bool ConfigReader::bool_or(const std::string& key, bool fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) refuse(key, "must be true or false, not " + shown(*value));
  return value->get<bool>();
}

std::string ConfigReader::string_or(const std::string& key, const std::string& fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) refuse(key, "must be a string, not " + shown(*value));
  return value->get<std::string>();
}

std::vector<int32_t> ConfigReader::token_ids(const std::string& key, int64_t vocab) const {
  std::vector<int32_t> ids;
  const Json* value = find(key);
  if (value == nullptr) return ids;
  if (!value->is_array()) return {as_token_id(key, *value, vocab)};
  for (const Json& id : *value) ids.push_back(as_token_id(key, id, vocab));
  return ids;
}

int32_t ConfigReader::pad_token_id(int64_t vocab) const {
  const Json* value = find("pad_token_id");
  // Some published configurations write -1 for "none".
  if (value == nullptr || *value == -1) return -1;
  return as_token_id("pad_token_id", *value, vocab);
}

std::string ConfigReader::shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true);
  if (text.size() > 60) text.replace(60, std::string::npos, "...");
  return text;
}

int64_t ConfigReader::as_int(const std::string& key, const Json& value, int64_t low, int64_t high) const {
  if (!value.is_number_integer()) refuse(key, "must be a whole number, not " + shown(value));
  const bool fits = !value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(high);
  const int64_t number = fits ? value.get<int64_t>() : 0;
  if (!fits || number < low || number > high) {
    refuse(key, fmt::format("is {}; it must lie between {} and {}", shown(value), low, high));
  }
  return number;
}

double ConfigReader::as_number(const std::string& key, const Json& value) const {
  if (!value.is_number()) refuse(key, "must be a number, not " + shown(value));
  return value.get<double>();
}

int32_t ConfigReader::as_token_id(const std::string& key, const Json& value, int64_t vocab) const {
  if (!value.is_number_integer()) refuse(key, "must be a token id or a list of them, not " + shown(value));
  return static_cast<int32_t>(as_int(key, value, 0, vocab - 1));
}

}  // namespace tandem::model
