// The command line of every verb: a mistake is told in lines of bounded length, and what is accepted has options whose
// text, as --print-config writes it, reads back to the same values. The first byte chooses the verb; each line is an
// argument; what stands behind a NUL byte is the file that --config names. The mutator writes flags that the verb has,
// with values at the edges of what they take.
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>

#include "config/other_trainers/unsupported_flags.h"
#include "config/sft_config.h"
#include "config/train_config.h"
#include "config/verb_configs.h"
#include "options/mistakes.h"
#include "tests/fuzz/json_mutator.h"

using namespace tandem::fuzz;
using tandem::options::Options;
namespace config = tandem::config;

namespace {

constexpr size_t kMaxMessageBytes = 8000;
constexpr size_t kMaxConfigBytes = size_t{1} << 20;

void require_line(std::string_view message) {
  require(message.find('\n') == std::string_view::npos, "a mistake is one line", message);
  require(message.size() <= kMaxMessageBytes, "a mistake is short", message);
}

// The options of one verb, as cli/verbs.cc declares them.
template <typename Config>
class Verb {
 public:
  Verb() {
    config_.visit(options_);
    for (const config::UnsupportedFlag& flag : config::unsupported_flags())
      options_.unsupported(flag.name, flag.reason);
  }
  Verb(const Verb&) = delete;
  Verb& operator=(const Verb&) = delete;

  Options& options() { return options_; }

  // Returns whether the arguments were accepted; flags that contradict each other are looked at, too.
  bool parse(const std::vector<std::string>& arguments) {
    try {
      // Who asks for help has not given what is required.
      if (options_.parse(config::without_harmless_flags(arguments)) == tandem::options::ParsedAction::kHelp)
        return false;
    } catch (const tandem::options::OptionsError& error) {
      for (const auto& one : error.refused()) require_line(one.flag + one.reason);
      for (const std::string& message : error.others()) require_line(message);
      require(error.list("tandem").size() <= 64 * kMaxMessageBytes, "the list of mistakes has an end");
      return false;
    } catch (const tandem::UserError& error) {
      require_line(error.what());
      return false;
    }
    if constexpr (requires { config_.check(); }) {
      accepts(
          [this] {
            config_.check();
            check_counts(config_);
          },
          require_line);
    }
    return true;
  }

 private:
  static void check_counts(const config::TrainConfig& config) {
    require(config.samples_per_rollout() > 0 && config.samples_per_step() > 0, "a rollout and a step have samples");
    require(config.steps_per_epoch() * config.samples_per_step() == config.samples_per_rollout(), "steps fit");
    require(config.steps_per_rollout() == config.steps_per_epoch() * config.num_epochs_per_rollout, "epochs fit");
    accepts([&] { require(config.rollouts(1000) >= 0, "a run has rollouts"); }, require_line);
    accepts([&] { require_line(config.left_out_by_epochs(1000)); }, require_line);
    config.loss_config();
  }
  template <typename Other>
  static void check_counts(const Other&) {}

  Config config_;
  Options options_;
};

template <typename Config>
void check_verb(const std::vector<std::string>& arguments) {
  static const MemoryFile file;
  Verb<Config> given;
  if (!given.parse(arguments)) return;
  const std::string text = given.options().config_text();
  if (text.size() > kMaxConfigBytes) return;
  file.write(text);
  Verb<Config> again;
  try {
    again.options().parse({"--config", file.path(), "--print-config"});
  } catch (const tandem::UserError& error) {
    require(false, "its own text is accepted", error.what() + text);
  }
  require(again.options().config_text() == text, "its own text reads back to the same values", text);
}

template <typename Config>
std::vector<std::string> names() {
  Verb<Config> verb;
  std::vector<std::string> result;
  const tandem::base::Json values = verb.options().values();
  for (const auto& [name, value] : values.items()) result.push_back(name);
  return result;
}

struct Row {
  void (*check)(const std::vector<std::string>&);
  std::vector<std::string> (*names)();
};
constexpr Row kVerbs[] = {
    {check_verb<config::TrainConfig>, names<config::TrainConfig>},
    {check_verb<config::SftConfig>, names<config::SftConfig>},
    {check_verb<config::GenerateConfig>, names<config::GenerateConfig>},
    {check_verb<config::ScoreConfig>, names<config::ScoreConfig>},
    {check_verb<config::EvalConfig>, names<config::EvalConfig>},
    {check_verb<config::ExportConfig>, names<config::ExportConfig>},
    {check_verb<config::PlanConfig>, names<config::PlanConfig>},
};

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::string flag(JsonMutator& mutator, size_t verb) {
  static const std::vector<std::string> kOwn[] = {kVerbs[0].names(), kVerbs[1].names(), kVerbs[2].names(),
                                                  kVerbs[3].names(), kVerbs[4].names(), kVerbs[5].names(),
                                                  kVerbs[6].names()};
  const auto unsupported = config::unsupported_flags();
  std::string name = kOwn[verb][mutator.below(kOwn[verb].size())];
  switch (mutator.below(16)) {
    case 0: name = unsupported[mutator.below(unsupported.size())].name; break;
    case 1: name = "no-" + name; break;
    case 2: name.erase(mutator.below(name.size()), 1); break;
    case 3: std::replace(name.begin(), name.end(), '-', '_'); break;
    default: break;
  }
  return "--" + name;
}

std::string word(JsonMutator& mutator) {
  static const std::vector<std::string> kWords = {"0",
                                                  "1",
                                                  "-1",
                                                  "2",
                                                  "4",
                                                  "8",
                                                  "16",
                                                  "4096",
                                                  "2147483648",
                                                  "4294967296",
                                                  "4611686018427387904",
                                                  "9223372036854775807",
                                                  "9223372036854775808",
                                                  "-9223372036854775808",
                                                  "18446744073709551616",
                                                  "0.5",
                                                  "1e-6",
                                                  "1e400",
                                                  "-0",
                                                  "nan",
                                                  "inf",
                                                  "-inf",
                                                  "0x10",
                                                  "1e3",
                                                  " 1",
                                                  "1 ",
                                                  "",
                                                  "true",
                                                  "false",
                                                  "auto",
                                                  "none",
                                                  "drop",
                                                  "lowest",
                                                  "constant",
                                                  "cosine",
                                                  "linear",
                                                  "grpo",
                                                  "gspo",
                                                  "dapo",
                                                  "rloo",
                                                  "float32",
                                                  "bfloat16",
                                                  "math",
                                                  "exact",
                                                  "r.py:f",
                                                  "a.jsonl@[1:2]",
                                                  "~/x",
                                                  "~",
                                                  "d/{rollout_id}.jsonl",
                                                  "{}",
                                                  "{\"a\":1}",
                                                  "\xff",
                                                  "\xc3\xa9",
                                                  "a\tb",
                                                  "\x1b[2J",
                                                  "1G"};
  return kWords[mutator.below(kWords.size())];
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const MemoryFile config;
  if (size == 0) return 0;
  const std::string_view text = text_of(data, size).substr(1);
  const size_t end = std::min(text.find('\0'), text.size());
  config.write(text.substr(std::min(end + 1, text.size())));
  std::vector<std::string> arguments = lines_of(text.substr(0, end));
  // No file but ours is read: another may block, or have no end.
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].starts_with("--config=")) arguments[i] = "--config=" + config.path();
    if (i > 0 && arguments[i - 1] == "--config") arguments[i] = config.path();
  }
  kVerbs[data[0] % std::size(kVerbs)].check(arguments);
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  JsonMutator mutator(seed);
  if (size == 0 || mutator.below(6) == 0) return LLVMFuzzerMutate(data, size, max_size);
  const std::string_view text = text_of(data, size).substr(1);
  const size_t nul = std::min(text.find('\0'), text.size());
  const std::string tail(text.substr(nul));
  std::vector<std::string> words = lines_of(text.substr(0, nul));
  const size_t verb = data[0] % std::size(kVerbs);
  for (size_t i = 1 + mutator.below(3); i > 0; --i) {
    const auto at = words.begin() + static_cast<std::ptrdiff_t>(mutator.below(words.size() + 1));
    switch (mutator.below(6)) {
      case 0: words.insert(at, flag(mutator, verb)); break;
      case 1: words.insert(at, flag(mutator, verb) + "=" + word(mutator)); break;
      case 2: words.insert(words.insert(at, word(mutator)), flag(mutator, verb)); break;
      case 3:
        if (at != words.end()) *at = word(mutator);
        break;
      case 4:
        if (at != words.end()) words.erase(at);
        break;
      default: words.insert(at, word(mutator));
    }
  }
  std::string all(1, static_cast<char>(data[0]));
  for (const std::string& one : words) all += one + "\n";
  all += tail;
  if (all.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::copy(all.begin(), all.end(), data);
  return all.size();
}
