#include "cli/command_line.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <new>
#include <optional>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/printable.h"
#include "base/version.h"
#include "cli/verbs.h"
#include "options/help.h"
#include "options/mistakes.h"
#include "options/names.h"
#include "tandem/error.h"
#include "worker/worker_config.h"

namespace tandem::cli {

namespace {

constexpr const char* kOutOfMemory =
    "out of memory: lower what the command has of --kv-cache-bytes, --max-tokens-per-gpu, --rollout-batch-size and "
    "--n-samples-per-prompt, or raise the limit (ulimit -v)";
constexpr const char* kNoThread =
    "a thread could not be started: the machine allows no more of them or no memory for its stack; raise the limits "
    "(ulimit -u, ulimit -v), or lower --num-threads";

std::string usage() {
  std::string text = "Usage: tandem VERB [options]\n\nPost-trains Hugging Face language models with GRPO.\n\n";
  size_t longest = 0;
  for (const Verb& verb : verbs()) longest = std::max(longest, std::string_view(verb.name).size());
  for (const Verb& verb : verbs()) {
    text += fmt::format("  {:<{}}  ", verb.name, longest);
    options::append_wrapped(text, verb.description, /*indent=*/longest + 4, options::help_columns(STDOUT_FILENO));
  }
  return text + "\n`tandem VERB --help` lists a verb's options; `tandem --version` says which version this is.\n";
}

const Verb& find_verb(const std::string& name) {
  std::vector<std::string> names;
  for (const Verb& verb : verbs()) {
    if (name == verb.name) return verb;
    names.emplace_back(verb.name);
  }
  const std::string ours = verb_of_other_trainer(name);
  TANDEM_USER_CHECK(ours.empty(), fmt::format("unknown verb '{}': here it is `tandem {} ...`", name, ours));
  const std::optional<std::string> nearest = options::nearest_name(name, names);
  throw UserError(fmt::format("unknown verb '{}'{}; `tandem --help` lists them", name,
                              nearest ? fmt::format(": did you mean {}?", *nearest) : ""));
}

// Prints text that a user asked to read. A reader who has seen enough (`tandem train --help | head`) is no failure.
void print_text(const std::string& text) {
  errno = 0;
  const bool is_printed = std::fputs(text.c_str(), stdout) != EOF && std::fflush(stdout) == 0;
  if (!is_printed && errno == EPIPE) return std::clearerr(stdout);
  check_printed();
}

int dispatch(const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h" || arguments[0] == "help") {
    print_text(usage());
    TANDEM_USER_CHECK(!arguments.empty(), "no verb is given; `tandem --help` lists them");
    return 0;
  }
  if (arguments[0] == "--version") {
    std::printf("tandem %s\n", base::kVersion);
    check_printed();
    return 0;
  }
  const Verb& verb = find_verb(arguments[0]);
  const int code = verb.run(verb, {arguments.begin() + 1, arguments.end()});
  if (!verb.keeps_run) check_printed();
  return code;
}

// Prints one line of plain characters whatever the message holds, so that scripts can take the last line of stderr.
int fail(int code, const std::string& message) {
  std::string line = message;
  for (char& c : line) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  std::fflush(stdout);
  std::fprintf(stderr, "tandem: error: %s\n", base::printable(line).c_str());
  return code;
}

// Checks the stack's size, since a stack overflow ends the process without a word. Threads get stacks of this limit,
// too.
void check_stack() {
  constexpr rlim_t kMinBytes = 1 << 20;
  rlimit limit = {};
  if (getrlimit(RLIMIT_STACK, &limit) != 0) return;
  TANDEM_ENV_CHECK(limit.rlim_cur >= kMinBytes,
                   fmt::format("the stack may have {} KiB, and {} are needed; raise the limit: ulimit -s 8192",
                               limit.rlim_cur >> 10, kMinBytes >> 10));
}

}  // namespace

std::string verb_of_other_trainer(const std::string& word) {
  constexpr auto kOfOthers = std::to_array<std::pair<const char*, const char*>>(
      {{"dpo", "sft --preference-loss sigmoid"}, {"kto", "sft --preference-loss kto"}, {"grpo", "train"}});
  for (const auto& [theirs, ours] : kOfOthers) {
    if (word == theirs) return ours;
  }
  return "";
}

bool was_answered(options::ParsedAction action, const options::Options& options, const std::string& usage,
                  const std::string& description) {
  if (action == options::ParsedAction::kRun) return false;
  const std::string text = action == options::ParsedAction::kHelp ? options.help_text(usage, description)
                                                                  : base::printable(options.config_text());
  print_text(text);
  return true;
}

void check_printed() {
  TANDEM_ENV_CHECK(std::fflush(stdout) == 0 && std::ferror(stdout) == 0,
                   "standard output: cannot be written (closed pipe or full disk)");
}

int report_failure(const std::exception_ptr& failure) {
  constexpr const char* kBug = "(this is a bug in Tandem, please report it)";
  try {
    std::rethrow_exception(failure);
  } catch (const UserError& error) {
    return fail(kExitUser, error.what());
  } catch (const EnvironmentError& error) {
    return fail(kExitEnvironment, error.what());
  } catch (const worker::WorkerError& error) {
    return fail(kExitEnvironment, fmt::format("a worker process was lost: {}", error.what()));
  } catch (const std::bad_alloc&) {
    return fail(kExitEnvironment, kOutOfMemory);
  } catch (const c10::OutOfMemoryError&) {
    return fail(kExitEnvironment,
                "out of memory on the device: lower what the command has of --kv-cache-bytes, --max-tokens-per-gpu and "
                "--logprob-chunk-rows");
  } catch (const c10::Error& error) {  // the message of what() ends in a page of stack
    const std::string what = error.what_without_backtrace();
    if (what.find("can't allocate memory") != std::string::npos) return fail(kExitEnvironment, kOutOfMemory);
    return fail(kExitBug, fmt::format("{} {}", what, kBug));
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::not_enough_memory) return fail(kExitEnvironment, kOutOfMemory);
    if (error.code() == std::errc::resource_unavailable_try_again) return fail(kExitEnvironment, kNoThread);
    return fail(kExitBug, fmt::format("{} {}", error.what(), kBug));
  } catch (const std::exception& error) {
    return fail(kExitBug, fmt::format("{} {}", error.what(), kBug));
  }
}

int run_command_line(const std::vector<std::string>& arguments) {
  try {
    check_stack();
    return dispatch(arguments);
  } catch (const options::OptionsError& error) {
    std::fflush(stdout);
    std::fputs(base::printable(error.list("tandem " + arguments[0])).c_str(), stderr);
    return fail(kExitUser, error.what());
  } catch (...) {
    return report_failure(std::current_exception());
  }
}

}  // namespace tandem::cli
