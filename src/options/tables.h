// Reads a TOML file of tables whose entries are options: defaults for all, and a list of items that each have options
// of their own.
//
//   [eval.defaults]
//   temperature = 0.6
//   [[eval.datasets]]
//   name = "aime"
//
// Every mistake has its place, "FILE:LINE:COLUMN: key: what is wrong".
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "options/options.h"

namespace tandem::options {

class OptionTables {
 public:
  // Reads the file. Throws UserError when it is no TOML, or holds anything but [TABLE.DEFAULTS] and [[TABLE.LIST]].
  OptionTables(const std::string& path, const std::string& table, const std::string& defaults, const std::string& list);
  ~OptionTables();

  size_t size() const;                         // number of tables in the list
  std::string place(size_t i) const;           // "FILE:LINE:COLUMN" of table i of the list
  void read_defaults(Options& options) const;  // fills in the fields; does nothing if the file has no defaults
  void read(size_t i, Options& options) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::options
