#include "cli/command_line.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <cstdio>
#include <optional>

#include "base/check.h"
#include "base/option_mistakes.h"
#include "base/options.h"
#include "cli/verbs.h"
#include "run/unsupported_flags.h"
#include "tandem/error.h"
#include "text/text_worker.h"

namespace tandem::cli {

namespace {

constexpr int kExitBug = 1, kExitUser = 2, kExitEnvironment = 3;

std::string usage() {
  std::string text = "Usage: tandem VERB [options]\n\nPost-trains Hugging Face language models with GRPO.\n\n";
  for (const Verb& verb : verbs()) {
    text += fmt::format("  {:<10}{}{}\n", verb.name, verb.description, verb.run ? "" : " (not in this version)");
  }
  return text + "\n`tandem VERB --help` lists a verb's options.\n";
}

const Verb& find_verb(const std::string& name) {
  std::vector<std::string> names;
  for (const Verb& verb : verbs()) {
    if (name == verb.name) return verb;
    names.emplace_back(verb.name);
  }
  const std::optional<std::string> nearest = base::nearest_name(name, names);
  throw UserError(fmt::format("unknown verb '{}'{}; `tandem --help` lists them", name,
                              nearest ? fmt::format(": did you mean {}?", *nearest) : ""));
}

int dispatch(const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h" || arguments[0] == "help") {
    std::fputs(usage().c_str(), stdout);
    return arguments.empty() ? kExitUser : 0;
  }
  if (arguments[0] == "--version") {
    std::puts("tandem " TANDEM_VERSION);
    return 0;
  }
  const Verb& verb = find_verb(arguments[0]);
  TANDEM_USER_CHECK(verb.run != nullptr, fmt::format("`tandem {}` is not in this version; `tandem --help` lists the "
                                                     "verbs that are",
                                                     verb.name));
  return verb.run(verb, {arguments.begin() + 1, arguments.end()});
}

// One line whatever a message holds, so that scripts can take the last line of stderr.
int fail(int code, const std::string& message) {
  std::string line = message;
  for (char& c : line) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  std::fflush(stdout);
  std::fprintf(stderr, "tandem: error: %s\n", line.c_str());
  return code;
}

bool is_flag(const std::string& word) { return word.size() > 2 && word.starts_with("--"); }

}  // namespace

std::vector<std::string> without_harmless_flags(const std::vector<std::string>& arguments) {
  std::vector<std::string> kept;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (!is_flag(word)) {
      kept.push_back(word);
      continue;
    }
    const size_t equals = word.find('=');
    const std::string name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
    const run::UnsupportedFlag* flag = run::find_unsupported_flag(name);
    std::optional<std::string> value;
    const bool value_follows = equals == std::string::npos && i + 1 < arguments.size() && !is_flag(arguments[i + 1]);
    if (equals != std::string::npos) value = word.substr(equals + 1);
    if (value_follows) value = arguments[i + 1];
    if (flag == nullptr || !run::is_harmless(*flag, value)) {
      kept.push_back(word);
      continue;
    }
    if (value_follows) ++i;
  }
  return kept;
}

int run_command_line(const std::vector<std::string>& arguments) {
  try {
    return dispatch(arguments);
  } catch (const base::OptionsError& error) {
    std::fflush(stdout);
    std::fputs(error.list("tandem " + arguments[0]).c_str(), stderr);
    return fail(kExitUser, error.what());
  } catch (const UserError& error) {
    return fail(kExitUser, error.what());
  } catch (const EnvironmentError& error) {
    return fail(kExitEnvironment, error.what());
  } catch (const text::WorkerError& error) {
    return fail(kExitEnvironment, fmt::format("a worker process was lost: {}", error.what()));
  } catch (const std::bad_alloc&) {
    return fail(kExitEnvironment,
                "out of memory: lower --kv-cache-bytes, --max-tokens-per-gpu or --rollout-batch-size");
  } catch (const c10::OutOfMemoryError&) {
    return fail(kExitEnvironment,
                "out of memory on the device: lower --kv-cache-bytes, --max-tokens-per-gpu or --logprob-chunk-rows");
  } catch (const c10::Error& error) {  // its what() ends in a page of stack
    return fail(kExitBug,
                fmt::format("{} (this is a bug in Tandem, please report it)", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return fail(kExitBug, fmt::format("{} (this is a bug in Tandem, please report it)", error.what()));
  }
}

}  // namespace tandem::cli
