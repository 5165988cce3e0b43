#include "evaluation/eval_sets.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/env.h"
#include "options/tables.h"

namespace tandem::evaluation {

std::vector<config::EvalSet> read_eval_sets(const config::EvalOptions& eval) {
  std::vector<config::EvalSet> sets;
  for (const auto& [name, path] : eval.data_sets()) {
    sets.emplace_back();
    sets.back().name = name;
    sets.back().path = path;
    sets.back().options = eval;
  }
  if (eval.eval_config.empty()) return sets;

  const options::OptionTables file(eval.eval_config, "eval", "defaults", "datasets");
  config::EvalSet defaults;
  defaults.options = eval;
  options::Options default_options(base::home_directory());
  defaults.visit_defaults(default_options);
  file.read_defaults(default_options);
  for (size_t i = 0; i < file.size(); ++i) {
    config::EvalSet set = defaults.without_reward();
    set.place = file.place(i);
    options::Options options(base::home_directory());
    set.visit(options);
    file.read(i, options);
    set.inherit_reward(defaults, eval);
    TANDEM_USER_CHECK(
        config::is_set_name(set.name),
        fmt::format("{}: name: '{}' is no name; give one of letters, digits, _ - .", set.place, set.name));
    TANDEM_USER_CHECK(std::ranges::none_of(sets, [&](const config::EvalSet& other) { return other.name == set.name; }),
                      fmt::format("{}: the name {} is given twice; names are part of metrics", set.place, set.name));
    TANDEM_USER_CHECK(!set.path.empty(),
                      fmt::format("{}: path: is missing; give the data set's JSONL file", set.place));
    sets.push_back(std::move(set));
  }
  TANDEM_USER_CHECK(
      !sets.empty(),
      fmt::format("--eval-config {}: names no data set; write [[eval.datasets]] with name and path", eval.eval_config));
  return sets;
}

}  // namespace tandem::evaluation
