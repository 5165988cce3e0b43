// Checks that the pages that users look things up in tell what the program does: docs/METRICS.md has every metric that
// runs write or sources name, and nothing else; docs/RUNS.md names every file and key of a run and lists the very flags
// that may change when it is resumed; docs/COMING_FROM.md has what each flag of slime is called here.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "config/other_trainers/other_trainers.h"
#include "config/other_trainers/unsupported_flags.h"
#include "config/sft_config.h"
#include "config/train_config.h"
#include "options/options.h"
#include "tests/base/temporary_directory.h"
#include "tests/cli/captured.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

using Names = std::set<std::string>;

// Returns the cells of each row of a page's tables, without the spaces around them.
std::vector<std::vector<std::string>> table_rows(const std::string& text) {
  static const std::regex kCell(" *([^|]*[^| ]|) *\\|");
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| ")) continue;
    std::vector<std::string> cells;
    for (std::sregex_iterator at(line.begin() + 1, line.end(), kCell), end; at != end; ++at) cells.push_back((*at)[1]);
    rows.push_back(cells);
  }
  return rows;
}

// Returns the words between backticks.
Names quoted_words(const std::string& text) {
  static const std::regex kQuoted("`([^`\n]+)`");
  Names words;
  for (std::sregex_iterator at(text.begin(), text.end(), kQuoted), end; at != end; ++at) words.insert((*at)[1]);
  return words;
}

// Returns the part of a page from a heading to the next one of its rank.
std::string section(const std::string& text, const std::string& heading) {
  const size_t begin = text.find("\n## " + heading + "\n");
  EXPECT_NE(begin, std::string::npos) << "no section " << heading;
  return begin == std::string::npos ? "" : text.substr(begin, text.find("\n## ", begin + 1) - begin);
}

// ---- The tests of docs/METRICS.md ----

// A metric of the page, such as `rollout/zero_std/count_REWARD`: a run puts its own text in place of words in capitals.
struct Metric {
  std::string name;
  std::regex pattern;
  Names records;  // "train", "rollout", "eval"
};

bool is_metric(const std::string& word) {
  static const std::regex kMetric("(train|rollout|perf|fault|eval|passrate|moe)/[^ ]+");
  return std::regex_match(word, kMetric) && !word.ends_with(".jsonl");
}

Metric read_metric(const std::string& name, const std::string& records) {
  static const std::map<std::string, std::string> kPlaceholders = {
      {"NAME", "held_out"}, {"KEY", "[a-z]+"},       {"CLASS", "[a-z_]+"}, {"REWARD", "-?[0-9.]+"},
      {"K", "[0-9]+"},      {"AGE", "([0-9]|more)"}, {"LAYER", "[0-9]+"}};
  static const std::regex kCapitals("[A-Z]+");
  std::string pattern;
  auto last = name.begin();
  for (std::sregex_iterator at(name.begin(), name.end(), kCapitals), end; at != end; ++at) {
    pattern.append(last, (*at)[0].first).append(kPlaceholders.at((*at)[0]));
    last = (*at)[0].second;
  }
  pattern.append(last, name.end());
  Metric metric{name, std::regex(pattern), {}};
  static const std::regex kRecord("[a-z]+");
  for (std::sregex_iterator at(records.begin(), records.end(), kRecord), end; at != end; ++at)
    metric.records.insert((*at)[0]);
  return metric;
}

std::vector<Metric> metrics_of_page() {
  std::vector<Metric> metrics;
  for (const std::vector<std::string>& cells : table_rows(base::read_file("docs/METRICS.md"))) {
    const Names words = cells.empty() ? Names() : quoted_words(cells[0]);
    if (words.size() != 1 || !is_metric(*words.begin())) continue;
    EXPECT_EQ(cells.size(), 5U) << cells[0];
    metrics.push_back(read_metric(*words.begin(), cells[1]));
  }
  return metrics;
}

const Metric* find_metric(const std::vector<Metric>& metrics, const std::string& name) {
  const auto matches = [&](const Metric& metric) { return std::regex_match(name, metric.pattern); };
  const auto found = std::ranges::find_if(metrics, matches);
  return found == metrics.end() ? nullptr : &*found;
}

// Runs that together show most of what there is to show. They are made once.
class Pages : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<base::TemporaryDirectory>();
    base::write_file_durably(path("trl.py"),
                             "def reward(completions, label, log_metric, log_extra, **kwargs):\n"
                             "    log_metric('length', len(completions))\n"
                             "    log_extra('expected', label)\n"
                             "    return [None] + [float(i) for i in range(1, len(completions))]\n");
    base::write_file_durably(path("slime.py"),
                             "async def reward(args, sample):\n"
                             "    if sample.index % 4 == 0: sample.remove_sample = True\n"
                             "    if sample.index % 4 == 1: sample.status = sample.Status.ABORTED\n"
                             "    return {'score': float(sample.index // 4 % 2), 'length': 1.0}\n");
    base::write_file_durably(path("sft.jsonl"), "{\"prompt\": \"say\", \"response\": \" yes\"}\n");
    train("full", "trl.py",
          {"--use-kl-loss",
           "--kl-loss-coef",
           "0.1",
           "--get-mismatch-metrics",
           "--use-opsm",
           "--off-policy-mask-threshold",
           "0.01",
           "--rollout-top-p",
           "0.9",
           "--log-passrate",
           "--eval-prompt-data",
           "held_out",
           kPrompts + "@[0:2]",
           "--eval-interval",
           "1",
           "--n-samples-per-eval-prompt",
           "2",
           "--save-interval",
           "1",
           "--save-debug-rollout-data",
           path("new/folder/{rollout_id}.jsonl")});
    train("other", "slime.py", {"--lr", "0"});
    const Captured sft =
        run({"sft", "--hf-checkpoint", kModel, "--prompt-data", path("sft.jsonl"), "--global-batch-size", "1",
             "--num-rollout", "2", "--save-interval", "1", "--eval-prompt-data", "held_out", path("sft.jsonl"),
             "--eval-interval", "1", "--no-use-tensorboard", "--save", path("sft")});
    ASSERT_EQ(sft.code, 0) << sft.err;
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static std::string path(const std::string& name) { return *folder_ / name; }

  static std::vector<base::Json> records() {
    std::vector<base::Json> all;
    for (const char* name : {"full", "other", "sft"}) {
      const std::vector<base::Json> own = json_lines(path(name) + "/metrics.jsonl");
      all.insert(all.end(), own.begin(), own.end());
    }
    return all;
  }

 private:
  static void train(const std::string& name, const std::string& reward, const Arguments& more) {
    const Arguments arguments = with_custom_reward(train_arguments(path(name), more), path(reward) + ":reward");
    const Captured result = run(arguments);
    ASSERT_EQ(result.code, 0) << result.err;
  }

  static inline std::unique_ptr<base::TemporaryDirectory> folder_;
};

std::string kind_of(const base::Json& record) {
  for (const char* kind : {"train", "rollout", "eval"}) {
    if (record.contains(std::string(kind) + "/step")) return kind;
  }
  return "";
}

TEST_F(Pages, NameEveryMetricOfARunAndItsRecord) {
  const std::vector<Metric> metrics = metrics_of_page();
  ASSERT_GT(metrics.size(), 100U);
  for (const base::Json& record : records()) {
    const std::string kind = kind_of(record);
    ASSERT_NE(kind, "") << record;
    for (const auto& [name, value] : record.items()) {
      if (name == "time_s" || name == kind + "/step") continue;
      const Metric* const metric = find_metric(metrics, name);
      ASSERT_NE(metric, nullptr) << "docs/METRICS.md has no row for " << name;
      EXPECT_TRUE(metric->records.contains(kind)) << name << " is in a " << kind << " record";
    }
  }
}

// Returns all of src, to search what is written in it.
std::map<std::string, std::string> sources() {
  std::map<std::string, std::string> texts;
  for (const auto& entry : fs::recursive_directory_iterator("src")) {
    const std::string path = entry.path().string();
    if (path.ends_with(".cc") || path.ends_with(".h")) texts[path] = base::read_file(path);
  }
  return texts;
}

// Returns the metrics that sources name: as a whole, or only the part after the prefix that another file adds.
Names metrics_of_sources() {
  struct Naming {
    const char *file, *pattern, *prefix;
  };
  const Naming kNamings[] = {
      {"", "\"((?:train|rollout|perf|fault|passrate|moe)/[a-z0-9_@/-]*[a-z])\"", ""},
      {"src/rl/metrics.cc", "metrics\\[\"([a-z_/]+)\"\\]", "rollout/"},
      {"src/rl/losses.cc", "(?:sums_\\[|add_metric\\(|add_part\\(|threshold, |delta, )\"([a-z_]+)\"", "train/"},
      {"src/trainer/trainer.cc", "metrics\\[\"([a-z_]+)\"\\]", "train/"},
      {"src/rl/learning_health.cc", "return \"([a-z_]+)\"", "fault/"}};
  const Names kNone = {"train/lr", "fault/unknown"};  // lr is lr-pg_0 in records
  Names names;
  for (const auto& [path, text] : sources()) {
    for (const Naming& naming : kNamings) {
      if (naming.file[0] != '\0' && path != naming.file) continue;
      const std::regex pattern(naming.pattern);
      std::istringstream lines(text);
      for (std::string line; std::getline(lines, line);) {
        if (line.find("#include") != std::string::npos) continue;
        for (std::sregex_iterator at(line.begin(), line.end(), pattern), end; at != end; ++at) {
          const std::string name = naming.prefix + (*at)[1].str();
          if (!kNone.contains(name) && !name.ends_with("/step")) names.insert(name);
        }
      }
    }
  }
  return names;
}

TEST_F(Pages, NameEveryMetricOfTheSources) {
  const Names names = metrics_of_sources();
  EXPECT_GT(names.size(), 80U);
  for (const char* known : {"train/kl_loss", "train/opsm_clipfrac", "rollout/grader_repeated", "fault/task_solved",
                            "rollout/response_len/max", "train/grad_clipped", "fault/save_errors", "moe/top1_weight"})
    EXPECT_TRUE(names.contains(known)) << known << " is not found, so the search has gone blind";
  const std::vector<Metric> metrics = metrics_of_page();
  for (const std::string& name : names)
    EXPECT_NE(find_metric(metrics, name), nullptr) << "docs/METRICS.md has no row for " << name;
}

// Returns the pieces of a name between the words in capitals, without its prefix.
Names fixed_pieces(const std::string& name) {
  static const std::regex kPiece("[^A-Z]+");
  const std::string rest = name.substr(name.find('/') + 1);
  Names pieces;
  for (std::sregex_iterator at(rest.begin(), rest.end(), kPiece), end; at != end; ++at) {
    if ((*at)[0].length() > 1) pieces.insert((*at)[0]);
  }
  return pieces;
}

TEST_F(Pages, NameNoMetricThatNothingWrites) {
  const std::vector<base::Json> written = records();
  const std::map<std::string, std::string> texts = sources();
  const auto is_written = [&](const Metric& metric) {
    return std::ranges::any_of(written, [&](const base::Json& record) {
      for (const auto& [name, value] : record.items()) {
        if (std::regex_match(name, metric.pattern)) return true;
      }
      return false;
    });
  };
  int num_written = 0;
  for (const Metric& metric : metrics_of_page()) {
    if (is_written(metric)) {
      ++num_written;
      continue;
    }
    for (const std::string& piece : fixed_pieces(metric.name)) {
      const bool is_there = std::ranges::any_of(texts, [&](const auto& source) {
        return source.second.find(piece + "\"") != std::string::npos ||
               source.second.find("\"" + piece) != std::string::npos;
      });
      EXPECT_TRUE(is_there) << metric.name << " is on docs/METRICS.md, and nothing writes it";
    }
  }
  EXPECT_GT(num_written, 85) << "of the rows of the page";
}

TEST_F(Pages, SpeakOfMetricsThatExist) {
  const std::vector<Metric> metrics = metrics_of_page();
  const Names rows = [&] {
    Names names = {"train/step", "rollout/step", "eval/step"};
    for (const Metric& metric : metrics) names.insert(metric.name);
    return names;
  }();
  for (const char* page :
       {"docs/TUNING.md", "docs/RUNS.md", "docs/SAMPLING.md", "docs/METRICS.md", "docs/EXPERTS.md"}) {
    for (const std::string& word : quoted_words(base::read_file(page))) {
      if (!is_metric(word) || word.find('*') != std::string::npos) continue;
      EXPECT_TRUE(rows.contains(word) || find_metric(metrics, word) != nullptr) << page << ": " << word;
    }
  }
  // The first cell has the peer's names.
  for (const std::vector<std::string>& cells : table_rows(base::read_file("docs/COMING_FROM.md"))) {
    for (const std::string& word : cells.size() > 1 ? quoted_words(cells[1]) : Names()) {
      EXPECT_TRUE(!is_metric(word) || rows.contains(word)) << "docs/COMING_FROM.md: " << word;
    }
  }
}

// ---- The tests of docs/RUNS.md ----

// Returns names such as "step_000002" and "rollout_000001.jsonl" as the page writes them.
std::string as_written(const std::string& name) {
  return std::regex_replace(std::regex_replace(name, std::regex("[0-9]{6}"), "NNNNNN"), std::regex("held_out"), "NAME");
}

void add_keys(const base::Json& value, Names& keys) {
  for (const auto& [key, member] : value.items()) keys.insert(key);
}

TEST_F(Pages, NameEveryFileOfARun) {
  const Names words = quoted_words(base::read_file("docs/RUNS.md"));
  for (const char* name : {"full", "other", "sft"}) {
    for (const auto& entry : fs::recursive_directory_iterator(path(name))) {
      const std::string file = as_written(fs::relative(entry.path(), path(name)).string());
      if (file.starts_with("hf/step_NNNNNN/") || file.starts_with("tensorboard/"))
        continue;  // files of Hugging Face and TensorBoard
      EXPECT_TRUE(words.contains(file) || words.contains(file + "/")) << "docs/RUNS.md has no " << file;
    }
  }
}

TEST_F(Pages, NameEveryKeyOfSamplesAndCheckpoints) {
  const std::string page = base::read_file("docs/RUNS.md");
  Names samples, checkpoint;
  for (const std::string& file : {path("full") + "/samples/rollout_000001.jsonl", path("new/folder/1.jsonl"),
                                  path("other") + "/samples/rollout_000000.jsonl"}) {
    for (const base::Json& line : json_lines(file)) add_keys(line, samples);
  }
  const std::string folder = path("full") + "/checkpoints/step_000002/";
  add_keys(json_lines(folder + "state.json").at(0), checkpoint);
  std::istringstream manifest(base::read_file(folder + "MANIFEST.json"));
  std::string line;
  std::getline(manifest, line);
  add_keys(base::parse_json(line, "MANIFEST.json"), checkpoint);
  for (const char* known : {"failure_class", "extra", "sampled_log_probs", "ref_log_probs", "advantage"})
    EXPECT_TRUE(samples.contains(known)) << known;
  const Names of_samples = quoted_words(section(page, "samples/"));
  for (const std::string& key : samples) {
    const std::string shown = key == "reward_length" ? "reward_KEY" : key;
    EXPECT_TRUE(of_samples.contains(shown)) << "docs/RUNS.md does not explain " << key << " of samples/";
  }
  const Names of_checkpoints = quoted_words(section(page, "checkpoints/"));
  for (const std::string& key : checkpoint)
    EXPECT_TRUE(of_checkpoints.contains(key)) << "docs/RUNS.md does not explain " << key << " of checkpoints/";
}

Names flags_in(const std::string& text) {
  static const std::regex kFlag("`--([a-z0-9-]+)`");
  Names flags;
  for (std::sregex_iterator at(text.begin(), text.end(), kFlag), end; at != end; ++at) flags.insert((*at)[1]);
  return flags;
}

template <typename Config>
Names flags_that_may_change() {
  Config config;
  options::Options options;
  config.visit(options);
  const std::map<std::string, std::string> fixed = options.result_options();
  const base::Json all = options.values();
  Names flags;
  for (const auto& [name, value] : all.items()) {
    if (!fixed.contains(name)) flags.insert(name);
  }
  return flags;
}

TEST_F(Pages, ListTheFlagsThatAResumedRunMayChange) {
  Names flags = flags_that_may_change<config::TrainConfig>();
  flags.merge(flags_that_may_change<config::SftConfig>());
  EXPECT_TRUE(flags.contains("num-rollout") && !flags.contains("lr"));
  Names listed;
  for (const std::vector<std::string>& cells :
       table_rows(section(base::read_file("docs/RUNS.md"), "What may change"))) {
    if (cells.size() > 1) listed.merge(flags_in(cells[1]));
  }
  EXPECT_EQ(listed, flags);
}

// ---- The tests of docs/COMING_FROM.md ----

TEST_F(Pages, SayOfEachFlagOfSlimeWhatItIsHere) {
  config::TrainConfig config;
  options::Options options;
  config.visit(options);
  const base::Json ours = options.values();
  int num_rows = 0;
  for (const std::vector<std::string>& cells :
       table_rows(section(base::read_file("docs/COMING_FROM.md"), "From slime and vime"))) {
    if (cells.size() < 2 || !cells[0].starts_with("`--")) continue;
    ++num_rows;
    const bool is_same = cells[1].starts_with("same"), is_refused = cells[1].starts_with("refused");
    for (const std::string& flag : flags_in(cells[0])) {
      const bool is_known = config::find_unsupported_flag(flag) != nullptr;
      EXPECT_TRUE(!is_same || ours.contains(flag)) << flag << " is not the same here";
      EXPECT_TRUE(!is_refused || (is_known && !ours.contains(flag))) << flag << " is not refused";
      EXPECT_TRUE(ours.contains(flag) || is_known) << flag;
    }
  }
  EXPECT_GT(num_rows, 40);
}

// Returns the rows of a section's table of names, as the page has them.
Names name_rows(const std::string& title, const std::string& head) {
  const std::string text = section(base::read_file("docs/COMING_FROM.md"), title);
  std::istringstream lines(text.substr(text.find("| " + head + " | here")));
  Names rows;
  std::string line;
  for (int i = 0; i < 2; ++i) std::getline(lines, line);
  while (std::getline(lines, line) && line.starts_with("| ")) rows.insert(line);
  return rows;
}

Names rows_of(std::span<const config::OtherName> names) {
  Names rows;
  for (const config::OtherName& name : names) {
    const std::string remark = *name.remark == '\0' ? " " : fmt::format(" {} ", name.remark);
    rows.insert(fmt::format("| `{}` | {} |{}|", name.name, name.here, remark));
  }
  return rows;
}

// The page and the program read one table: a user who types a name of it gets its row as the answer.
TEST(ComingFrom, EveryNameOfOtherTrainersIsAnsweredWithItsRowOfThePage) {
  EXPECT_EQ(name_rows("From TRL", "argument"), rows_of(config::names_of_trl()));
  EXPECT_EQ(name_rows("From verl", "key"), rows_of(config::names_of_verl()));
  EXPECT_EQ(name_rows("From AReaL", "key"), rows_of(config::names_of_areal()));
  EXPECT_EQ(name_rows("From prime-rl", "key"), rows_of(config::names_of_prime_rl()));
  config::TrainConfig config;
  options::Options options;
  config.visit(options);
  const base::Json ours = options.values();
  int num_answered = 0;
  for (const config::OtherName& name : config::names_of_trl()) {
    if (ours.contains(name.name) || config::find_unsupported_flag(name.name) != nullptr) continue;
    ++num_answered;
    expect_one_line_failure(run({"train", "--print-config", fmt::format("--{}", name.name), "1"}), 2,
                            fmt::format("--{}: {}", name.name, config::answer_of("TRL", name)));
  }
  EXPECT_GT(num_answered, 80);
  const std::pair<const char*, std::span<const config::OtherName>> keys[] = {{"verl", config::names_of_verl()},
                                                                             {"AReaL", config::names_of_areal()},
                                                                             {"prime-rl", config::names_of_prime_rl()}};
  for (const auto& [trainer, names] : keys) {
    for (const config::OtherName& name : names) {
      expect_one_line_failure(run({"train", fmt::format("{}=1", name.name), "--print-config"}), 2,
                              fmt::format("'{}=1': {}", name.name, config::answer_of(trainer, name)));
    }
  }
  // A flag that a name stands for is one of the program's.
  for (const auto names :
       {config::names_of_trl(), config::names_of_verl(), config::names_of_areal(), config::names_of_prime_rl()}) {
    for (const config::OtherName& name : names) {
      for (const std::string& flag : flags_in(name.here)) EXPECT_TRUE(ours.contains(flag)) << name.name << ": " << flag;
    }
  }
}

TEST(ComingFrom, NamesAreFoundAsPeopleTypeThem) {
  const auto fails = [](const Arguments& words, const std::string& expected) {
    Arguments arguments = {"train", "--print-config"};
    arguments.insert(arguments.end(), words.begin(), words.end());
    expect_one_line_failure(run(arguments), 2, expected);
  };
  fails({"--learning-rate", "1e-6"}, "--learning-rate: TRL's learning_rate is --lr here");
  fails({"--learning_rate=1e-6"}, "--learning_rate: TRL's learning_rate is --lr here");
  fails({"--max-steps", "100"}, "--max-steps: TRL's max_steps is --num-rollout here; a step of TRL is");
  fails({"--load-in-4bit"}, "--load-in-4bit: TRL's load_in_4bit is --dtype nf4 here; with --lora-rank");
  fails({"--bnb-4bit-quant-storage", "uint8"},
        "--bnb-4bit-quant-storage: TRL's bnb_4bit_quant_storage has no counterpart here; always bytes");
  fails({"--clip-ratio-high", "0.28"},
        "--clip-ratio-high: verl's actor_rollout_ref.actor.clip_ratio_high is --eps-clip-high here");
  fails({"--lr", "1e-6", "+actor_rollout_ref.rollout.n=8"}, "is --n-samples-per-prompt here");
  fails({"--leraning-rate", "1e-6"},
        "--leraning-rate: unknown option; did you mean --learning-rate? Then: TRL's learning_rate is --lr here");
  fails({"--nothing-like-it"}, "--nothing-like-it: unknown option; --help lists what there is");
  fails({"nothing=like"}, "unexpected argument 'nothing=like': every option begins with --");
  const base::TemporaryDirectory folder;
  base::write_file_durably(folder / "job.toml", "per_device_train_batch_size = 8\n");
  fails({"--config", folder / "job.toml"}, "TRL's per_device_train_batch_size is --global-batch-size here");
  // A required flag is not asked for again if a name stands for it.
  const Captured all = run({"train", "--model_name_or_path", "x", "--train_dataset", "y"});
  EXPECT_EQ(all.err.find("--hf-checkpoint: is required"), std::string::npos) << all.err;
  EXPECT_NE(all.err.find("--rollout-batch-size: is required"), std::string::npos) << all.err;
  expect_one_line_failure(run({"sft", "--print-config", "--num_generations", "8"}), 2,
                          "is --n-samples-per-prompt here (a flag that this command does not have)");
}

// slime's recipes recompute every layer with `uniform` and 1; without `uniform` the 1 would be one layer of many.
TEST(ComingFrom, ARefusedFlagTakesItsCompanionsAlong) {
  const Captured pasted = run({"train", "--colocate", "--recompute-granularity", "full", "--recompute-method",
                               "uniform", "--recompute-num-layers", "1", "--custom-tis-function-path", "mis.py:f",
                               "--use-tis", "--tis-clip", "2", "--lr", "1e-6"});
  EXPECT_EQ(pasted.code, 2);
  const size_t at = pasted.err.find("what remains without the unsupported flags:");
  ASSERT_NE(at, std::string::npos) << pasted.err;
  const std::string remains = pasted.err.substr(at);
  EXPECT_NE(remains.find("--recompute-granularity full"), std::string::npos) << remains;
  EXPECT_NE(remains.find("--lr 1e-6"), std::string::npos) << remains;
  for (const char* gone : {"--recompute-num-layers", "--use-tis", "--tis-clip"}) {
    EXPECT_EQ(remains.find(gone), std::string::npos) << remains;
  }
}

}  // namespace
}  // namespace tandem::cli
