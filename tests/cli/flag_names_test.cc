// Checks the flags in sources, documents and examples: every --word in them is an option of some verb, or a flag of
// another trainer that is refused with its reason or answered with ours.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>
#include <string_view>

#include "base/files.h"
#include "config/other_trainers/other_trainers.h"
#include "config/other_trainers/unsupported_flags.h"
#include "tests/cli/captured.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

// Flags of the programs that build, test and measure Tandem.
const std::set<std::string> kOfOtherPrograms = {
    "preset",       "build",          "target",      "fresh",            // cmake
    "no-deps",      "logdir",                                            // pip, tensorboard
    "platform",     "python-version", "only-binary",                     // pip
    "format",       "query-gpu",                                         // nvidia-smi
    "always",       "dirty",                                             // git describe
    "args",                                                              // gdb
    "rm",           "init",           "ipc",         "stop-timeout",     // docker run
    "security-opt", "cap-drop",       "privileged",  "no-compile",       // docker run, pip
    "user",                                                              // docker run
    "signal",       "requeue",        "nodes",       "ntasks-per-node",  // sbatch, srun
    "no-python",                                                         // torchrun
    "append",                                                            // wandb sync
    "local-dir",    "repo-type",                                         // hf download
    "all",                                                               // two_hosts.sh
    "half",         "gtest_filter",   "golden",      "soak",
    "repeat",       "rank",           "join",        "launch",  // test programs
    "soak-seconds", "pack",           "jobs",        "seconds",
    "runs",         "slice-seconds",  // the soak,
                                      // tests/fuzz/campaign.py
};
// Flags of what starts Tandem on clusters: sbatch, srun and squeue, kubectl, sky, ray.
const std::set<std::string> kOfClusterTools = {
    "ntasks",           "gpus-per-node", "gpus",     "job-name",         "time",
    "open-mode",        "array",         "export",   "dependency",       "noheader",
    "kill-on-bad-exit", "from-file",     "validate", "secret",           "env",
    "schemas",          "head",          "address",  "runtime-env-json",
};
// These words stand for any flag.
const std::set<std::string> kPlaceholders = {"name", "no-name", "word"};

std::set<std::string> options_of_all_verbs() {
  std::set<std::string> names = {"version", "help", "config", "print-config"};
  for (const char* verb : {"train", "sft", "generate", "score", "scorer", "eval", "export", "plan", "bench", "view",
                           "launch", "placement", "engine", "device"}) {
    const std::string help = run({verb, "--help"}).out;
    static const std::regex kDeclared("(^|\n)  --(\\[no-\\])?([a-z0-9-]+)");
    for (std::sregex_iterator at(help.begin(), help.end(), kDeclared), end; at != end; ++at) {
      names.insert((*at)[3]);
      if ((*at)[2].matched) names.insert("no-" + (*at)[3].str());
    }
  }
  return names;
}

bool is_flag(const std::set<std::string>& options, const std::string& name) {
  const std::string positive = name.starts_with("no-") ? name.substr(3) : name;
  const auto is_it = [&](const config::OtherName& other) {
    return std::ranges::equal(std::string_view(other.name), name, {}, [](char c) { return c == '_' ? '-' : c; });
  };
  return options.contains(name) || config::find_unsupported_flag(name) != nullptr ||
         config::find_unsupported_flag(positive) != nullptr || std::ranges::any_of(config::names_of_trl(), is_it);
}

// A name such as "rollout-*" in prose stands for the flags that begin so.
bool is_beginning(const std::set<std::string>& options, const std::string& beginning) {
  const auto begins = [&](std::string_view name) { return name.starts_with(beginning); };
  return std::any_of(options.begin(), options.end(), begins) ||
         std::ranges::any_of(config::unsupported_flags(), begins, &config::UnsupportedFlag::name);
}

// Returns what people read of a line of C++: its texts and its comment. In code "--n" counts down.
std::string prose_of(const std::string& line) {
  std::string prose;
  bool in_text = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (!in_text && line.compare(i, 2, "//") == 0) return prose + line.substr(i);
    if (line[i] == '"' && (i == 0 || line[i - 1] != '\\')) in_text = !in_text;
    prose += in_text ? line[i] : ' ';
  }
  return prose;
}

struct Mention {
  std::string place, name;
  bool is_beginning = false;
};

std::vector<Mention> mentions_in(const std::string& path) {
  static const std::regex kFlag("(^|[^A-Za-z0-9_-])--([a-z][a-z0-9_-]*)(\\*)?");
  const bool is_code = path.ends_with(".cc") || path.ends_with(".h") || path.ends_with(".cu");
  std::vector<Mention> result;
  std::istringstream lines(base::read_file(path));
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const std::string text = is_code ? prose_of(line) : line;
    for (std::sregex_iterator at(text.begin(), text.end(), kFlag), end; at != end; ++at) {
      result.push_back({path + ":" + std::to_string(number), (*at)[2], (*at)[3].matched});
    }
  }
  return result;
}

bool is_read(const fs::path& path) {
  static const std::set<std::string> kEndings = {".cc", ".h", ".cu", ".py", ".md", ".sh", ".toml"};
  return kEndings.contains(path.extension().string());
}

std::vector<Mention> all_mentions() {
  std::vector<Mention> result = mentions_in("README.md");
  for (const char* folder : {"src", "include", "python", "docs", "examples", "bench"}) {
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (!entry.is_regular_file() || !is_read(entry.path())) continue;
      const std::vector<Mention> found = mentions_in(entry.path().string());
      result.insert(result.end(), found.begin(), found.end());
    }
  }
  return result;
}

// Returns the flags of our benchmarks, which only their folder names.
std::set<std::string> flags_of_benchmarks() {
  static const std::regex kDeclared("(add_argument\\(|== )\"--([a-z][a-z0-9_-]*)\"");
  std::set<std::string> names = {"benchmark_filter"};  // a flag of the library that measures
  for (const auto& entry : fs::recursive_directory_iterator("bench")) {
    if (!entry.is_regular_file() || !is_read(entry.path())) continue;
    const std::string text = base::read_file(entry.path().string());
    for (std::sregex_iterator at(text.begin(), text.end(), kDeclared), end; at != end; ++at) names.insert((*at)[2]);
  }
  return names;
}

TEST(FlagNames, EveryFlagThatIsWrittenSomewhereExists) {
  const std::set<std::string> options = options_of_all_verbs(), of_benchmarks = flags_of_benchmarks();
  ASSERT_GT(options.size(), 150U);
  const std::vector<Mention> mentions = all_mentions();
  EXPECT_GT(mentions.size(), 500U);
  for (const Mention& mention : mentions) {
    if (kOfOtherPrograms.contains(mention.name) || kOfClusterTools.contains(mention.name) ||
        kPlaceholders.contains(mention.name))
      continue;
    if (mention.place.starts_with("bench/") && of_benchmarks.contains(mention.name)) continue;
    const bool exists = mention.is_beginning ? is_beginning(options, mention.name) : is_flag(options, mention.name);
    EXPECT_TRUE(exists) << mention.place << ": --" << mention.name << " is no flag of any verb";
  }
}

TEST(FlagNames, TheTestSeesInventedOnes) {
  const std::set<std::string> options = options_of_all_verbs();
  EXPECT_TRUE(is_flag(options, "rollout-batch-size"));
  EXPECT_TRUE(is_flag(options, "no-use-tensorboard"));
  EXPECT_TRUE(is_flag(options, "vllm-anything"));
  EXPECT_FALSE(is_flag(options, "loss-aggregation"));
  EXPECT_TRUE(is_beginning(options, "rollout-"));
  EXPECT_FALSE(is_beginning(options, "rolling-"));
  EXPECT_EQ(prose_of("f(--n, \"--lr\");  // --seed"), "       \"--lr     // --seed");
}

}  // namespace
}  // namespace tandem::cli
