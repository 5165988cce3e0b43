// A TOML file of tables whose entries are options: what holds for all, and a list of things that each have options of
// their own.
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

#include "base/options.h"

namespace tandem::base {

class OptionTables {
 public:
  // Reads the file. UserError when it is no TOML, or holds anything but [TABLE.DEFAULTS] and [[TABLE.LIST]].
  OptionTables(const std::string& path, const std::string& table, const std::string& defaults, const std::string& list);
  ~OptionTables();

  size_t size() const;                         // of the list
  std::string place(size_t i) const;           // "FILE:LINE:COLUMN" of one table of it
  void read_defaults(Options& options) const;  // into the fields; nothing where the file has none
  void read(size_t i, Options& options) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::base
