// Shows the measurements of `tandem bench` as a table that grows row by row, and as one JSON record. No torch.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "bench/work.h"

namespace tandem::bench {

struct Measurement {
  std::string what;    // "decode"
  std::string detail;  // "256 sequences", for people
  double seconds = 0;  // time of the piece of work
  double tokens = 0;   // tokens that it computed; 0: none
  Work work;           // least work that it needs
  // These are further figures by name, for JSON; people read them in `note`, a line below.
  std::vector<std::pair<std::string, double>> figures = {};
  std::string note = {};
};

class BenchTable {
 public:
  // `prints` tells whether people see the table; the record is kept in any case.
  explicit BenchTable(bool prints) : prints_(prints) {}

  // Prints a line in front of the table, or between its rows.
  void line(const std::string& text) const;
  // Sets the record's entry of that name.
  void set(const std::string& name, base::Json value) { record_[name] = std::move(value); }
  void add(const Measurement& measurement);

  const base::Json& record() const { return record_; }

 private:
  bool prints_;
  bool has_header_ = false;
  base::Json record_ = base::Json::object();
};

base::Json ceilings_json(const Ceilings& ceilings);

}  // namespace tandem::bench
