// Reads one JSON object of a Hugging Face configuration by key, with types and bounds. Every refusal is a UserError
// that names the file and the key.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace tandem::model {

// A null counts as absent, because Hugging Face writes null for "not set". The object is borrowed.
class ConfigReader {
 public:
  // `name` stands for the file in messages. UserError where `object` is no JSON object.
  ConfigReader(const base::Json& object, std::string name);

  // Throws the UserError "NAME: KEY what_and_remedy".
  [[noreturn]] void refuse(const std::string& key, const std::string& what_and_remedy) const;

  const base::Json* find(const std::string& key) const;  // null: absent
  bool has(const std::string& key) const { return find(key) != nullptr; }
  // The next three throw UserError where the key is absent, of another type or out of range.
  const base::Json& required(const std::string& key) const;
  int64_t required_int(const std::string& key, int64_t low, int64_t high) const;
  double required_number(const std::string& key) const;
  // The next three throw UserError where the key is of another type or out of range.
  double number_or(const std::string& key, double fallback) const;
  bool bool_or(const std::string& key, bool fallback) const;
  std::string string_or(const std::string& key, const std::string& fallback) const;

  // The key may have one token id, a list of them, or nothing.
  std::vector<int32_t> token_ids(const std::string& key, int64_t vocab) const;
  // Returns -1 where there is none.
  int32_t pad_token_id(int64_t vocab) const;

  // Returns a value as a message shows it: short, on one line.
  static std::string shown(const base::Json& value);

  const base::Json& object() const { return *object_; }
  const std::string& name() const { return name_; }

 private:
  int64_t as_int(const std::string& key, const base::Json& value, int64_t low, int64_t high) const;
  double as_number(const std::string& key, const base::Json& value) const;
  int32_t as_token_id(const std::string& key, const base::Json& value, int64_t vocab) const;

  const base::Json* object_;
  std::string name_;
};

}  // namespace tandem::model
