// The page of `tandem view` shows the parts of a run, treats none of the run's texts as markup, and stays small.
#include "report/run_page.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "report/chart.h"
#include "report/run_files.h"
#include "report/run_samples.h"
#include "tandem/error.h"
#include "tests/base/temporary_directory.h"
#include "text/text_worker.h"

namespace tandem::report {
namespace {

constexpr const char* kConfig = "n-samples-per-prompt = 8\nnum-rollout = 3\n# num-epoch =\nlr = 4e-04\n";

std::string rollout_record(int step, double reward, double time_s) {
  return fmt::format(
      "{{\"rollout/step\":{},\"perf/rollout_time\":2.0,\"perf/step_time\":5.0,"
      "\"perf/actor_train_time\":2.5,\"perf/tokens_per_gpu_per_sec\":50.0,\"rollout/raw_reward\":{},"
      "\"time_s\":{}}}\n",
      step, reward, time_s);
}

std::string train_record(int step, double loss, double time_s) {
  return fmt::format("{{\"train/step\":{},\"train/loss\":{},\"time_s\":{}}}\n", step, loss, time_s);
}

std::string sample(const std::string& prompt, const std::string& response, double reward) {
  return base::dump_json({{"group_id", 0},
                          {"sample_id", 0},
                          {"prompt", prompt},
                          {"response", response},
                          {"label", "7"},
                          {"reward", reward},
                          {"status", "completed"},
                          {"response_length", 2},
                          {"advantage", 1.5}}) +
         "\n";
}

size_t count(const std::string& text, const std::string& part) {
  size_t num = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++num;
  return num;
}

// Returns the text between two others, the first time.
std::string between(const std::string& text, const std::string& begin, const std::string& end) {
  const size_t from = text.find(begin) + begin.size();
  return text.substr(from, text.find(end, from) - from);
}

class RunPage : public testing::Test {
 protected:
  std::string write_run(const std::string& name, const std::string& metrics, const std::string& config = kConfig) {
    const std::string path = folder_ / name;
    base::make_directories(path + "/samples");
    base::write_file_durably(path + "/metrics.jsonl", metrics);
    if (!config.empty()) base::write_file_durably(path + "/config.toml", config);
    return path;
  }
  static std::string page_of(const std::string& path) { return page_of({read_run(path)}); }
  static std::string page_of(const std::vector<RunFiles>& runs) { return run_page(runs); }

  base::TemporaryDirectory folder_;
};

TEST_F(RunPage, ShowsCurvesTimesMemoryAndSamples) {
  const std::string path =
      write_run("a", "{\"eval/step\":0,\"eval/held_out\":0.05,\"eval/held_out/response_len/mean\":3.0,\"time_s\":1}\n" +
                         train_record(0, 0.5, 2) + rollout_record(0, 0.125, 3) + train_record(1, 0.4, 4) +
                         rollout_record(1, 0.25, 5) + train_record(2, 0.3, 6) + rollout_record(2, 0.75, 7));
  base::write_file_durably(path + "/samples/rollout_000000.jsonl",
                           sample("2+5=", "7", 1.0) + sample("2+5=", "eight", 0.0) + sample("2+5=", "9", 0.0) +
                               "{\"response\":\"x\",\"reward\":null,\"failure\":\"timeout: 30 s\"}\n");
  base::write_file_durably(path + "/memory_timeline.jsonl",
                           "{\"event\":\"step\",\"step\":2,\"phases\":{\"train\":{\"most\":{\"head\":1048576},"
                           "\"planned\":{\"head\":2097152},\"most_at_once\":1048576,\"planned_at_once\":2097152}}}\n");
  const std::string page = page_of(path);
  EXPECT_TRUE(page.starts_with(kPageMark));
  EXPECT_NE(page.find("3 of 3 rollouts, 0:07 of work, 300 tokens sampled"), std::string::npos);
  EXPECT_NE(page.find("first 0.125, last 0.75, lowest 0.125, highest 0.75"), std::string::npos);
  EXPECT_NE(page.find("evaluation held_out"), std::string::npos);
  const std::string reward = between(page, "<h3>Reward", "</figure>");
  EXPECT_EQ(count(reward, "<path class=\"line run-0\""), 3U) << "one for each axis";
  EXPECT_EQ(count(between(reward, "<path class=\"line run-0\"", "/>"), "L"), 2U) << "three points";
  EXPECT_NE(page.find("sampling and grading</td><td class=\"number\">0:06</td><td class=\"number\">40.0 %"),
            std::string::npos);
  EXPECT_NE(page.find("<td>head</td><td class=\"number\">1.0 MiB</td><td class=\"number\">2.0 MiB"), std::string::npos);
  EXPECT_NE(page.find("<strong>reward 1</strong>, advantage 1.5, 2 tokens, completed"), std::string::npos);
  EXPECT_NE(page.find("highest reward"), std::string::npos);
  EXPECT_EQ(count(page, "<pre class=\"prompt\">2+5=</pre>"), 1U) << "a prompt stands once above its samples";
  EXPECT_NE(page.find("<pre class=\"p4\">eight</pre>"), std::string::npos);
  EXPECT_NE(page.find("grading failed</span></p>\n<p class=\"warn\">timeout: 30 s</p>"), std::string::npos);
  EXPECT_EQ(page, page_of(path)) << "the same files give the same page";
}

TEST_F(RunPage, CountsSamplingOnceWhereItOverlapsWithTraining) {
  std::string record = rollout_record(0, 0.5, 4.0);
  record.insert(record.find("\"time_s\""), "\"perf/train_wait_time\":0.5,");
  const std::string page = page_of(write_run("a", record));
  EXPECT_NE(between(page, "sampling and grading</td>", "</tr>").find(">10.0 %"), std::string::npos) << "0.5 s of 5";
}

TEST_F(RunPage, PlacesRecordsOnThreeAxes) {
  // The run has two optimizer steps a rollout; then comes a resume, whose clock begins again, then a kill within a
  // rollout.
  const std::string path = write_run("a", train_record(0, 1, 1) + train_record(1, 1, 2) + rollout_record(0, 0.1, 3) +
                                              train_record(2, 1, 0.5) + train_record(3, 1, 1) +
                                              rollout_record(1, 0.2, 2) + train_record(4, 1, 3));
  const RunFiles run = read_run(path);
  std::string rollouts, seconds, tokens;
  for (const Position& position : run.positions) {
    rollouts += fmt::format("{:g} ", position.rollouts);
    seconds += fmt::format("{:g} ", position.seconds);
    tokens += fmt::format("{:g} ", position.tokens);
  }
  EXPECT_EQ(rollouts, "0.5 1 1 1.5 2 2 2.5 ");
  EXPECT_EQ(seconds, "1 2 3 3.5 4 5 6 ");
  EXPECT_EQ(tokens, "100 100 100 200 200 200 200 ");
}

TEST_F(RunPage, OfASupervisedRunCountsSteps) {
  std::string metrics = "{\"eval/step\":0,\"eval/h/loss\":8.0,\"time_s\":0.5}\n";
  for (int step = 0; step < 4; ++step) {
    metrics += fmt::format(
        "{{\"train/step\":{},\"perf/actor_train_time\":2.0,\"perf/actor_train_tok_per_s\":10.0,"
        "\"train/loss\":{},\"time_s\":{}}}\n",
        step, 8 - step, step + 1);
  }
  const std::string page = page_of(write_run("sft", metrics, "num-epoch = 1\n"));
  EXPECT_NE(page.find("4 steps, 0:04 of work, 80 tokens read in training, prompts too"), std::string::npos);
  EXPECT_NE(page.find("evaluation h"), std::string::npos);
  EXPECT_EQ(page.find("<h2>Time"), std::string::npos) << "it has one phase";
  EXPECT_EQ(page.find("<h2>Samples"), std::string::npos);
}

TEST_F(RunPage, OfPreferencesShowsWhichAnswersAreHeldBetter) {
  std::string metrics = "{\"eval/step\":0,\"eval/h/loss\":0.7,\"eval/h/accuracy\":0.5,\"time_s\":0.5}\n";
  for (int step = 0; step < 2; ++step) {
    metrics += fmt::format(
        "{{\"train/step\":{},\"train/loss\":0.6,\"preference/accuracy\":0.{},\"preference/margin\":0.1,"
        "\"preference/chosen_reward\":0.2,\"preference/rejected_reward\":0.1,\"time_s\":{}}}\n",
        step, 5 + step, step + 1);
  }
  const std::string page = page_of(write_run("dpo", metrics, "num-epoch = 1\n"));
  const size_t others = page.find("<h2>Everything else");
  for (const char* const title :
       {"<h3>Preference accuracy", "<h3>Preference margin", "<h3>Reward of chosen", "<h3>Reward of rejected"}) {
    EXPECT_LT(page.find(title), others) << title;
  }
  EXPECT_EQ(page.find("eval/h/accuracy", others), std::string::npos) << "it is beside preference/accuracy";
}

TEST_F(RunPage, TwoRunsAreOnTheSameAxes) {
  const std::string a = write_run("a", rollout_record(0, 0.1, 3) + rollout_record(1, 0.2, 5));
  const std::string b = write_run("b", rollout_record(0, 0.3, 9), "n-samples-per-prompt = 8\nlr = 1e-04\n");
  const std::string page = page_of({read_run(a), read_run(b)});
  const std::string reward = between(page, "<h3>Reward", "</figure>");
  EXPECT_NE(reward.find("class=\"line run-0\" data-label=\"a\""), std::string::npos);
  EXPECT_NE(reward.find("class=\"line run-1\" data-label=\"b\""), std::string::npos);
  EXPECT_NE(reward.find("data-axis=\"time\" data-begin=\"0\" data-end=\"9\""), std::string::npos);
  EXPECT_NE(page.find("<tr><td><code>lr</code></td><td>4e-04</td><td>1e-04</td></tr>"), std::string::npos);
  EXPECT_EQ(page.find("<tr><td><code>n-samples-per-prompt</code>"), std::string::npos) << "it is the same in both";
}

TEST_F(RunPage, TenRunsHaveTenColoursAndOneTableOfWhatDiffers) {
  std::vector<RunFiles> runs;
  for (int i = 0; i < 10; ++i)
    runs.push_back(read_run(write_run(fmt::format("seed{}", i), rollout_record(0, 0.1 * i, 3),
                                      fmt::format("n-samples-per-prompt = 8\nseed = {}\n", i)),
                            10));
  const std::string page = page_of(runs), style = between(page, "<style>", "</style>");
  EXPECT_NE(page.find("<h1>seed0, seed1, "), std::string::npos);
  EXPECT_NE(page.find("seed8 and seed9</h1>"), std::string::npos);
  const std::string reward = between(page, "<h3>Reward", "</figure>");
  for (int i = 0; i < 10; ++i) {
    EXPECT_NE(reward.find(fmt::format("class=\"line run-{0}\" data-label=\"seed{0}\"", i)), std::string::npos) << i;
    EXPECT_EQ(count(style, fmt::format("--run-{}: #", i)), 2U) << "a colour on light and one on dark ground";
  }
  EXPECT_NE(page.find("<td><code>seed</code></td><td>0</td><td>1</td><td>2</td>"), std::string::npos);
}

TEST_F(RunPage, ALongCurveIsAlsoSmoothedAndAShortOneIsNot) {
  std::string metrics;
  for (int step = 0; step < 400; ++step) metrics += rollout_record(step, step % 2, step);
  const std::string page = page_of(write_run("long", metrics));
  const std::string reward = between(page, "<h3>Reward", "</figure>");
  EXPECT_EQ(count(reward, "class=\"line run-0 rough\""), 3U) << "one for each axis";
  EXPECT_EQ(count(reward, "class=\"smooth run-0\""), 3U);
  EXPECT_EQ(count(page, "<input class=\"axis\" type=\"checkbox\" id=\"smooth\" checked>"), 1U);
  EXPECT_EQ(count(page_of(write_run("short", rollout_record(0, 0.1, 3))), "class=\"smooth"), 0U);
}

TEST_F(RunPage, ALossThatIsRoundingIsZero) {
  const std::string page = page_of(write_run("a", train_record(0, 1.3e-17, 1) + rollout_record(0, 0.5, 2) +
                                                      train_record(1, -2.5e-17, 3) + rollout_record(1, 1e-17, 4)));
  EXPECT_NE(between(page, "<h3>Loss", "</figure>").find("first 0, last 0, lowest 0, highest 0"), std::string::npos);
  EXPECT_NE(between(page, "<h3>Reward", "</figure>").find("last 1e-17"), std::string::npos) << "no sum that cancels";
}

TEST_F(RunPage, PiecesOfSeveralTurnsAreShadedByWhatIsTrained) {
  base::Json record = base::parse_json(sample("12+30=", "?8292", 1.0), "sample");
  record["turns"] = 2;
  record["pieces"] = {{{"from", "model"}, {"text", "<call>"}, {"length", 3}, {"trained_length", 3}},
                      {{"from", "function"}, {"text", "82"}, {"length", 2}, {"trained_length", 0}},
                      {{"from", "model"}, {"text", "92"}, {"length", 2}, {"trained_length", 1}}};
  base::Json many = record;
  for (int i = 0; i < 200; ++i) many["pieces"].push_back({{"from", "model"}, {"text", std::string(900, 'x')}});
  const std::string path = write_run("a", rollout_record(0, 0.1, 3));
  base::write_file_durably(path + "/samples/rollout_000000.jsonl",
                           base::dump_json(record) + "\n" + base::dump_json(many) + "\n");
  const std::string page = page_of(path);
  EXPECT_NE(page.find("<div class=\"piece trained\"><p class=\"faint\">model, 3 tokens, trained</p>"
                      "<pre class=\"p4\">&lt;call&gt;</pre></div>"),
            std::string::npos);
  EXPECT_NE(
      page.find("<div class=\"piece untrained\"><p class=\"faint\">function, 2 tokens, untrained</p><pre>82</pre>"),
      std::string::npos);
  EXPECT_NE(page.find("<div class=\"piece partly\"><p class=\"faint\">model, 2 tokens, 1 of them trained</p>"),
            std::string::npos);
  EXPECT_EQ(count(page, "<pre>?8292</pre>"), 0U) << "the text without its turns says less";
  EXPECT_NE(page.find("163 pieces left out here"), std::string::npos);
  EXPECT_LT(page.size(), size_t{100'000});
}

TEST_F(RunPage, SamplesSayWhatTheScriptSortsAndFiltersBy) {
  base::Json record = base::parse_json(sample("12+30=", "42", -0.5), "sample");
  record["turns"] = 3;
  record["mean_logprob"] = -0.25;
  record["failure"] = "timeout: 30 s";
  const std::string path = write_run("a", rollout_record(0, 0.1, 3));
  base::write_file_durably(path + "/samples/rollout_000000.jsonl", base::dump_json(record) + "\n");
  const std::string page = page_of(path);
  EXPECT_NE(page.find("<article data-length=\"2\" data-turns=\"3\" data-status=\"completed\" data-reward=\"-0.5\" "
                      "data-advantage=\"1.5\" data-logprob=\"-0.25\" data-failed=\"1\">"),
            std::string::npos);
  EXPECT_NE(page.find("<details open data-file=\"0/rollout_000000.jsonl\">"), std::string::npos);
  EXPECT_NE(page.find("<option value=\"0/rollout_000000.jsonl\">rollout_000000.jsonl</option>"), std::string::npos);
  EXPECT_NE(page.find("<form class=\"finder\" hidden>"), std::string::npos) << "without the script it does nothing";
}

// Answers that the data or a teacher gave are no samples of the model: they have no reward, and nothing has failed.
TEST_F(RunPage, GivenAnswersAreCalledSo) {
  base::Json given = base::parse_json(sample("1+2=", "3", 0.0), "sample");
  given["reward"] = nullptr;
  given["off_policy"] = true;
  const std::string path = write_run("a", rollout_record(0, 0.1, 3));
  base::write_file_durably(path + "/samples/rollout_000000.jsonl",
                           base::dump_json(given) + "\n" + sample("1+2=", "4", 0.5));
  const std::string page = page_of(path);
  EXPECT_EQ(count(page, "<strong>given answer</strong>"), 1U);
  EXPECT_EQ(count(page, "no reward"), 0U);
  EXPECT_NE(page.find("2 of 2 samples, 1 given answer, mean reward 0.5"), std::string::npos);
}

// The page's script is tried by hand only. It searches these parts of an article, and no caption is within them.
TEST_F(RunPage, TheTextsOfASampleAreMarkedForTheSearch) {
  base::Json record = base::parse_json(sample("12+30=", "42", -0.5), "sample");
  record["failure"] = "timeout: 30 s";
  const std::string path = write_run("a", rollout_record(0, 0.1, 3));
  base::write_file_durably(path + "/samples/rollout_000000.jsonl", base::dump_json(record) + "\n");
  const std::string page = page_of(path);
  const std::string article = between(page, "<article", "</article>");
  EXPECT_NE(article.find("<p class=\"warn\">timeout: 30 s</p>"), std::string::npos);
  EXPECT_NE(article.find("<pre class=\"prompt\">12+30=</pre>"), std::string::npos);
  EXPECT_NE(article.find("<p class=\"faint\">label: <span class=\"label\">7</span></p>"), std::string::npos);
  EXPECT_EQ(count(article, "<pre"), 2U) << "prompt and response";
  EXPECT_EQ(count(article, "class=\"warn\"") + count(article, "class=\"label\""), 2U);
  EXPECT_NE(page.find("querySelectorAll(\"pre:not(.prompt), .label, .warn\")"), std::string::npos);
  EXPECT_EQ(page.find("article.textContent"), std::string::npos) << "it has the captions";
}

TEST_F(RunPage, HasThousandsOfSamplesWhereThereIsRoom) {
  const std::string path = write_run("a", rollout_record(0, 0.1, 3));
  for (int i = 0; i < 4; ++i) {
    std::string samples;
    for (int j = 0; j < 512; ++j) samples += sample(fmt::format("{}+{}=", i, j / 8), std::to_string(i + j / 8), j % 2);
    base::write_file_durably(fmt::format("{}/samples/rollout_{:06}.jsonl", path, i), samples);
  }
  const std::string page = page_of(path);
  EXPECT_EQ(count(page, "<article"), 2048U);
  EXPECT_EQ(count(page, "<details><summary>the other 504</summary>"), 4U);
  EXPECT_LT(page.size(), 2U << 20);
  EXPECT_EQ(page.find("that is long the page shows"), std::string::npos) << "nothing is left out";
}

// The classes are the quarter of the largest advantage of the file, 2, that the numbers lie in.
TEST_F(RunPage, TokensAreShadedByTheirAdvantages) {
  base::Json record = base::parse_json(sample("1+1=", "2 or <3", 1.0), "sample");
  record.erase("advantage");
  record["token_texts"] = {"2", " or", "", " <3", "<end>"};
  record["token_advantages"] = {2.0, -0.5, 0.4, nullptr, 0.0};
  record["token_log_probs"] = {-0.125, -1.5, -2.0, nullptr, -0.0625};
  base::Json damaged = record;
  damaged["token_advantages"] = base::Json::array({2.0});
  const std::string path = write_run("a", rollout_record(0, 0.1, 3));
  base::write_file_durably(path + "/samples/rollout_000000.jsonl",
                           base::dump_json(record) + "\n" + base::dump_json(damaged) + "\n");
  const std::string page = page_of(path);
  EXPECT_NE(page.find("<pre class=\"tokens\"><i class=p4 title=\"advantage 2, log-prob -0.125\">2</i>"
                      "<i class=n1 title=\"advantage -0.5, log-prob -1.5\"> or</i>"
                      "<i class=p1 title=\"advantage 0.4, log-prob -2\"></i>"
                      "<i title=\"not trained on\"> &lt;3</i>"
                      "<i title=\"advantage 0, log-prob -0.0625\">&lt;end&gt;</i></pre>"),
            std::string::npos)
      << between(page, "<article", "</article>");
  EXPECT_NE(page.find("<pre>2 or &lt;3</pre>"), std::string::npos) << "lists of different lengths are not believed";
  EXPECT_NE(page.find("under the pointer it shows"), std::string::npos);
}

TEST_F(RunPage, OfALongResponseTheFirstAndTheLastTokensAreShown) {
  base::Json record = base::parse_json(sample("1+1=", "2", 1.0), "sample");
  record.erase("advantage");
  for (int t = 0; t < 2000; ++t) {
    record["token_texts"].push_back(fmt::format(" t{}", t));
    record["token_advantages"].push_back(1.0);
    record["token_log_probs"].push_back(-1.0);
  }
  const std::string path = write_run("a", rollout_record(0, 0.1, 3));
  base::write_file_durably(path + "/samples/rollout_000000.jsonl", base::dump_json(record) + "\n");
  const std::string page = page_of(path);
  EXPECT_EQ(count(page, "<i class=p4 title"), kBeginTokens + kEndTokens);
  EXPECT_NE(page.find("> t1199</i>\n[... 500 tokens are left out here ...]\n<i"), std::string::npos);
  EXPECT_NE(page.find("> t1999</i></pre>"), std::string::npos);
}

TEST_F(RunPage, PiecesHaveTheirOwnTokens) {
  base::Json record = base::parse_json(sample("12+30=", "?42 42", 1.0), "sample");
  record["pieces"] = {{{"from", "model"}, {"text", "?"}, {"length", 1}, {"trained_length", 1}},
                      {{"from", "function"}, {"text", "42"}, {"length", 1}, {"trained_length", 0}},
                      {{"from", "model"}, {"text", " 42"}, {"length", 2}, {"trained_length", 2}}};
  record["token_texts"] = {"?", "42", " 4", "2"};
  record["token_advantages"] = {1.0, nullptr, -1.0, -0.25};
  record["token_log_probs"] = {-1.0, nullptr, -1.0, -1.0};
  const std::string path = write_run("a", rollout_record(0, 0.1, 3));
  base::write_file_durably(path + "/samples/rollout_000000.jsonl", base::dump_json(record) + "\n");
  const std::string page = page_of(path);
  EXPECT_NE(page.find("1 token, untrained</p><pre class=\"tokens\"><i title=\"not trained on\">42</i></pre>"),
            std::string::npos);
  EXPECT_NE(page.find("2 tokens, trained</p><pre class=\"tokens\"><i class=n3 "), std::string::npos)
      << "of 1.5, the largest of the file";
}

TEST_F(RunPage, NothingOfTheFilesIsMarkup) {
  const std::string evil =
      "</pre></script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\u2028\u202e\u0085\x1b[2J\x01";
  base::Json record = {{"rollout/step", 0}, {"rollout/raw_reward", 0.5}, {"time_s", 1}};
  record[evil] = 1.0;
  record["fault/" + evil] = 1.0;
  record["eval/" + evil] = 1.0;
  record["eval/" + evil + "/response_len/mean"] = 1.0;
  base::Json second = record;
  second["rollout/step"] = 1;
  second[evil] = 2.0;
  const std::string path =
      write_run("a<script>alert(2)<!--", base::dump_json(record) + "\n" + base::dump_json(second) + "\n",
                std::string(kConfig) + "hf-checkpoint = \"" + evil + "\"\n");
  base::Json tokens = base::parse_json(sample(evil, evil, 1), "sample");
  tokens["status"] = evil;
  tokens["token_texts"] = base::Json::array({evil});
  tokens["token_advantages"] = base::Json::array({1.0});
  tokens["token_log_probs"] = base::Json::array({evil});
  base::write_file_durably(path + "/samples/rollout_000000.jsonl",
                           sample(evil, evil, 1) + sample(evil, evil, 0) + base::dump_json(tokens) + "\n");
  base::write_file_durably(path + "/log.txt", evil + "\n");
  base::Json memory = {{"event", "step"}, {"step", 0}};
  memory["phases"][evil] = {{"most", {{evil, 5}}}, {"planned", {{evil, 4}}}};
  base::write_file_durably(path + "/memory_timeline.jsonl", base::dump_json(memory) + "\n");
  const RunFiles run = read_run(path);
  for (const std::string& page : {page_of({run}), page_of({run, run})}) {
    EXPECT_EQ(count(page, "<script"), 1U);
    EXPECT_EQ(count(page, "</script"), 1U);
    EXPECT_EQ(count(page, "<img"), 0U);
    EXPECT_EQ(count(page, "<!--"), 1U) << "our own mark";
    EXPECT_GT(count(page, "&lt;img src=x onerror=alert(1)&gt;&quot;&#39;&amp;\\u2028\\u202e\\u0085\\u001b[2J\\u0001"),
              8U);
    for (const char* hidden : {"\u2028", "\u202e", "\u0085", "\x1b", "\x01"}) EXPECT_EQ(count(page, hidden), 0U);
  }
}

TEST_F(RunPage, AllowsItsOwnScriptAndStyleAloneAndNoNetwork) {
  const std::string page = page_of(write_run("a", rollout_record(0, 0.1, 3)));
  base::write_file_durably(folder_ / "style", between(page, "<style>", "</style>"));
  base::write_file_durably(folder_ / "script", between(page, "<script>", "</script>"));
  const auto hash = [&](const std::string& file) {
    const std::string command = worker::default_worker_config().python +
                                " -c \"import base64,hashlib;print(base64.b64encode(hashlib.sha256(open('" +
                                (folder_ / file) + "','rb').read()).digest()).decode(),end='')\"";
    FILE* const pipe = ::popen(command.c_str(), "r");
    std::string text;
    for (int c = 0; (c = std::fgetc(pipe)) != EOF;) text.push_back(static_cast<char>(c));
    ::pclose(pipe);
    return text;
  };
  EXPECT_EQ(between(page, "Content-Security-Policy\" content=\"", "\">"),
            "default-src 'none'; style-src 'sha256-" + hash("style") + "'; script-src 'sha256-" + hash("script") +
                "'; base-uri 'none'; form-action 'none'");
  EXPECT_EQ(count(page, "://"), 1U) << "the name of SVG, which is no address";
  for (const char* word : {" style=", " onclick", "javascript:", "@import", "url(", "innerHTML", "eval("})
    EXPECT_EQ(count(page, word), 0U) << word;
}

TEST_F(RunPage, HasWhatPaperNeeds) {
  const std::string path = write_run("a", rollout_record(0, 0.1, 3) + "{\"rollout/step\":1,\"fault/save_errors\":2}\n");
  base::write_file_durably(path + "/memory_timeline.jsonl",
                           "{\"event\":\"step\",\"step\":2,\"phases\":{\"train\":{\"most\":{\"head\":1048576},"
                           "\"planned\":{\"head\":2097152},\"most_at_once\":1048576,\"planned_at_once\":2097152}}}\n");
  const std::string other = write_run("b", rollout_record(0, 0.2, 3), "lr = 1e-4\n");
  const std::string page = page_of({read_run(path), read_run(other)}), style = between(page, "<style>", "</style>");
  const std::string paper = between(style, "@media print {\n", "\n}\n");
  EXPECT_EQ(count(style, "prefers-color-scheme: dark"), count(style, "@media screen and (prefers-color-scheme: dark)"))
      << "a dark screen does not make dark paper";
  // Paper has nothing that only a screen can use, nothing cut off, and no heading on another page than its part.
  for (const char* rule : {".axes, .axis, output, .cursor, .reading { display: none; }", "pre { max-height: none;",
                           ".scroll { overflow: visible; }", "tr { break-inside: avoid; }", "break-after: avoid",
                           "figure, article { border: 1px solid", ".on-paper { display: block; }"})
    EXPECT_EQ(count(paper, rule), 1U) << rule;
  EXPECT_EQ(count(style, "\n.on-paper { display: none; }"), 1U);
  EXPECT_EQ(count(page, " on-paper\">Of what was folded on the screen, paper has the title alone."), 1U);
  // A table that continues on another page repeats its headings: those of faults, times of two runs, memory and
  // options.
  EXPECT_EQ(count(page, "<thead><tr><th"), 5U);
  EXPECT_EQ(count(page, "<thead><tr><th"), count(page, "<tr><th"));
  EXPECT_EQ(count(page, "</tr></thead>"), 5U);
}

TEST_F(RunPage, SaysWhatIsDamaged) {
  std::string metrics = rollout_record(0, 0.1, 3) + "[1, 2]\nnonsense\n" + "{\"reward\": 1}\n";
  metrics += "{\"rollout/step\":1,\"rollout/raw_reward\":\"nan\",\"train/x\":\"inf\",\"time_s\":4}\n";
  metrics += rollout_record(2, 0.3, 5) + rollout_record(3, 0.4, 6).substr(0, 40);
  const std::string path = write_run("a", metrics);
  base::write_file_durably(path + "/samples/rollout_000000.jsonl", sample("p", "r", 1) + "{\"reward\": \n");
  base::write_file_durably(path + "/samples/notes.txt", "not of a run\n");
  const std::string page = page_of(path);
  EXPECT_NE(page.find("metrics.jsonl: 3 lines are no records and are left out; the first is line 2."),
            std::string::npos);
  EXPECT_NE(page.find("metrics.jsonl: the last line is not finished"), std::string::npos);
  EXPECT_NE(page.find("samples/rollout_000000.jsonl: 1 line is no records"), std::string::npos);
  EXPECT_NE(
      page.find("first 0.1, last 0.3, lowest 0.1, highest 0.3; <span class=\"warn\">1 value is not finite</span>"),
      std::string::npos);
  EXPECT_EQ(count(between(page, "<path class=\"line run-0\" data-label=\"value\"", "/>"), "M"), 2U) << "a gap";
}

TEST_F(RunPage, RefusesWhatIsNoRunAndWhatHasNoRecord) {
  base::make_directories(folder_ / "empty");
  base::make_directories(folder_ / "begun");
  base::write_file_durably(folder_ / "begun/config.toml", kConfig);
  base::write_file_durably(folder_ / "file", "x");
  write_run("nothing", "");
  for (const auto& [name, says] : {std::pair{"missing", "no such directory"},
                                   {"file", "is a file, and a directory is needed"},
                                   {"empty", "holds no run"},
                                   {"begun", "the run has no records (no metrics.jsonl)"},
                                   {"nothing", "the run has no records (metrics.jsonl has none)"}}) {
    try {
      read_run(folder_ / name);
      FAIL() << name;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  }
}

TEST_F(RunPage, OfALongRunIsSmallAndKeepsTheSpikes) {
  std::string metrics;
  for (int step = 0; step < 2000; ++step) metrics += rollout_record(step, step == 1333 ? 1.0 : 0.0, step);
  std::string wide = "{\"rollout/step\":2000";
  std::string wider = "{\"rollout/step\":2001";
  for (int i = 0; i < 900; ++i) {
    wide += fmt::format(",\"many/{}\":0.5", i);
    wider += fmt::format(",\"many/{}\":{}", i, i % 2);
  }
  metrics += wide + "}\n" + wider + "}\n" + "{\"rollout/step\":2002,\"" + std::string(200, 'n') + "\":1}\n";
  const std::string path = write_run("a", metrics);
  for (int i = 0; i < 20; ++i) {
    std::string samples;
    for (int j = 0; j < 9; ++j) samples += sample(std::string(9'000, '&'), std::string(9'000, '\x02'), j);
    base::write_file_durably(fmt::format("{}/samples/rollout_{:06}.jsonl", path, i), samples);
  }
  const RunFiles run = read_run(path);
  const std::string page = page_of({run, run});
  EXPECT_LT(page.size(), 20U << 20);
  const std::string ten = page_of(std::vector<RunFiles>(kMaxPageRuns, read_run(path, kMaxPageRuns)));
  EXPECT_LT(ten.size(), 20U << 20);
  EXPECT_EQ(count(ten, "<code>rollout_0000"), 20U) << "the first and the last of each run";
  EXPECT_EQ(count(page, "<code>rollout_0000"), 24U) << "twelve of each run";
  EXPECT_NE(page.find("Samples are shown of 12 of the 20 rollouts"), std::string::npos);
  EXPECT_NE(page.find("bytes are left out here"), std::string::npos);
  EXPECT_NE(page.find("1 metric whose name is longer"), std::string::npos);
  EXPECT_NE(page.find("Of the metrics, "), std::string::npos) << "not all of nine hundred are drawn";
  const std::string path_text =
      between(between(page_of({run}), "<h3>Reward", "</figure>"), "data-label=\"value\" d=\"", "\"");
  EXPECT_LE(count(path_text, "L"), 600U);
  EXPECT_NE(path_text.find(" 18.4L"), std::string::npos) << "the spike, a little below the top";
}

TEST(Chart, TicksLieInTheRangeAndAreFew) {
  const auto seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> exponent(-300, 300), part(-1, 1);
  for (int i = 0; i < 5000; ++i) {
    double begin = part(random) * std::pow(10.0, exponent(random)),
           end = part(random) * std::pow(10.0, exponent(random));
    if (i % 3 == 0) end = begin + std::abs(begin) * 1e-12 * std::abs(part(random));
    if (begin > end) std::swap(begin, end);
    const std::vector<double> at = ticks(begin, end, 4);
    ASSERT_LE(at.size(), 10U) << begin << " " << end;
    for (size_t j = 0; j < at.size(); ++j) {
      // A tick at 0 is one within rounding of it.
      ASSERT_LE(at[j], end + (end - begin) * 1e-9);
      ASSERT_GE(at[j], begin - (end - begin) * 1e-9);
      if (j > 0) {
        ASSERT_GE(at[j], at[j - 1]);
      }
    }
  }
  EXPECT_EQ(ticks(0, 60, 5, 1), (std::vector<double>{0, 20, 40, 60}));
  EXPECT_EQ(ticks(-0.1, 1.1, 4), (std::vector<double>{0, 0.5, 1}));
  EXPECT_TRUE(ticks(1, 1, 4).empty());
}

TEST(Chart, SmoothingIsTheMovingAverageWithoutItsBias) {
  std::vector<double> values(100, 3.0);
  values[50] = std::nan("");
  const std::vector<double> constant = smoothed(values);
  for (size_t i = 0; i < values.size(); ++i) {
    if (i != 50) EXPECT_NEAR(constant[i], 3.0, 1e-12) << i;
  }
  EXPECT_TRUE(std::isnan(constant[50])) << "a gap stays";
  // The expected values are computed by hand: each value has the weight 0.6 to the power of its age (a fortieth of 100
  // values is 2.5).
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i * i % 7);
  const std::vector<double> curve = smoothed(values);
  for (const size_t at : {0UL, 1UL, 40UL, 99UL}) {
    double sum = 0, weights = 0;
    for (size_t i = 0; i <= at; ++i) {
      sum += std::pow(0.6, static_cast<double>(at - i)) * values[i];
      weights += std::pow(0.6, static_cast<double>(at - i));
    }
    EXPECT_NEAR(curve[at], sum / weights, 1e-12) << at;
  }
  EXPECT_TRUE(smoothed(std::vector<double>(kLeastSmoothed - 1, 1.0)).empty());
}

TEST(Chart, NumbersAreShort) {
  EXPECT_EQ(short_number(0.03125), "0.03125");
  EXPECT_EQ(short_number(12345), "12.35k");
  EXPECT_EQ(short_number(-2'500'000), "-2.5M");
  EXPECT_EQ(short_number(3e9), "3G");
}

TEST(RunFilesTest, EvenlySpreadHasBothEnds) {
  EXPECT_EQ(evenly_spread(3, 8), (std::vector<size_t>{0, 1, 2}));
  EXPECT_EQ(evenly_spread(10, 4), (std::vector<size_t>{0, 3, 6, 9}));
  EXPECT_EQ(evenly_spread(0, 4), std::vector<size_t>());
  EXPECT_EQ(evenly_spread(5, 1), std::vector<size_t>{0});
}

}  // namespace
}  // namespace tandem::report
