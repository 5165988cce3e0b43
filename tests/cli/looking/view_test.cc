// Checks `tandem view` as it is typed: what it writes of a real run, what it leaves alone, and what it refuses.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>

#include "base/files.h"
#include "report/run_page.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {
namespace {

// Returns every file of a folder with its bytes.
std::map<std::string, std::string> contents(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files[entry.path()] = base::read_file(entry.path());
  }
  return files;
}

// All tests share one run.
class View : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new base::TemporaryDirectory;
    const Captured trained = run(with_custom_reward(train_arguments(*folder_ / "run"), write_reward(*folder_)));
    ASSERT_EQ(trained.code, 0) << trained.err;
    const Captured supervised =
        run({"sft", "--hf-checkpoint", kModel, "--prompt-data", write_lines(*folder_), "--global-batch-size", "1",
             "--num-rollout", "2", "--save", *folder_ / "sft", "--no-use-tensorboard"});
    ASSERT_EQ(supervised.code, 0) << supervised.err;
  }
  static void TearDownTestSuite() { delete folder_; }

  static std::string write_lines(const base::TemporaryDirectory& folder) {
    base::write_file_durably(folder / "sft.jsonl", "{\"prompt\": \"1+1=\", \"response\": \"2\"}\n");
    return folder / "sft.jsonl";
  }

  static base::TemporaryDirectory* folder_;
};

base::TemporaryDirectory* View::folder_ = nullptr;

TEST_F(View, WritesAPageIntoTheRunAndChangesNothingElse) {
  const std::string path = *folder_ / "run";
  const auto before = contents(path);
  {
    const base::DirectoryLock lock(path);  // held as by a run that continues
    const Captured viewed = run({"view", path});
    ASSERT_EQ(viewed.code, 0) << viewed.err;
    EXPECT_EQ(viewed.out, "wrote " + path + "/view.html: open it in a browser\n");
  }
  auto after = contents(path);
  const std::string page = after[path + "/view.html"];
  after.erase(path + "/view.html");
  EXPECT_EQ(after, before);
  EXPECT_NE(page.find("2 of 2 rollouts"), std::string::npos);
  for (const char* heading :
       {"<h3>Reward", "<h3>Entropy", "<h3>Gradient norm", "<h2>Time", "<h2>Memory", "<h2>Samples"})
    EXPECT_NE(page.find(heading), std::string::npos) << heading;
  EXPECT_NE(page.find("<code>rollout_000001.jsonl</code>"), std::string::npos);
  EXPECT_EQ(run({"view", "--run", path}).code, 0) << "a page of its own is replaced";
}

TEST_F(View, TwoRunsAndSupervisedOnes) {
  const std::string output = *folder_ / "both.html";
  const Captured viewed = run({"view", *folder_ / "run", *folder_ / "sft", "--output", output});
  ASSERT_EQ(viewed.code, 0) << viewed.err;
  const std::string page = base::read_file(output);
  EXPECT_NE(page.find("<h1>run and sft</h1>"), std::string::npos);
  EXPECT_NE(page.find("2 of 2 steps"), std::string::npos);
  EXPECT_NE(page.find("<td><code>n-samples-per-prompt</code></td><td>4</td><td>unset</td>"), std::string::npos);
}

TEST_F(View, TenRunsShareAPage) {
  const std::string output = *folder_ / "ten.html", path = *folder_ / "run";
  Arguments arguments = {"view", *folder_ / "sft"};
  for (int i = 0; i < 9; ++i) arguments.push_back(path);
  arguments.insert(arguments.end(), {"--output", output});
  const Captured viewed = run(arguments);
  ASSERT_EQ(viewed.code, 0) << viewed.err;
  EXPECT_NE(base::read_file(output).find("<h1>sft, "), std::string::npos);
}

TEST_F(View, TriesWithoutWriting) {
  const Captured tried = run({"view", *folder_ / "sft", "--dry-run"});
  EXPECT_EQ(tried.code, 0) << tried.err;
  EXPECT_NE(tried.out.find("nothing was (--dry-run)"), std::string::npos);
  EXPECT_FALSE(base::file_exists(*folder_ / "sft/view.html"));
}

TEST_F(View, PrintsThePageWhereOtherVerbsPrint) {
  const Captured printed = run({"view", *folder_ / "sft", "--output", "-"});
  ASSERT_EQ(printed.code, 0) << printed.err;
  EXPECT_TRUE(printed.out.starts_with(report::kPageMark)) << printed.out.substr(0, 80);
  EXPECT_TRUE(printed.out.ends_with("</html>\n")) << "nothing follows the page";
  EXPECT_FALSE(base::file_exists("-"));
  const Captured tried = run({"view", *folder_ / "sft", "--output", "-", "--dry-run"});
  EXPECT_EQ(tried.code, 0) << tried.err;
  EXPECT_NE(tried.out.find("standard output would be written; nothing was"), std::string::npos) << tried.out;
}

TEST_F(View, RefusesInOneLine) {
  const std::string path = *folder_ / "run";
  base::make_directories(*folder_ / "empty");
  base::make_directories(*folder_ / "begun");
  base::write_file_durably(*folder_ / "begun/config.toml", "num-rollout = 3\n");
  struct Case {
    Arguments arguments;
    int code;
    std::string says;
  };
  for (const Case& each : std::vector<Case>{
           {{"view"}, 2, "--run: is required"},
           {{"view", path, path, path, path, path, path, path, path, path, path, path},
            2,
            "--run: names 11 run directories, and a page shows 10 at most; leave some out"},
           {{"view", *folder_ / "missing"}, 2, "no such directory; name the --save directory of a run"},
           {{"view", *folder_ / "empty"}, 2, "holds no run (no config.toml and no metrics.jsonl)"},
           {{"view", *folder_ / "begun"}, 2, "the run has no records (no metrics.jsonl); look again after its first"},
           {{"view", path, "--output", path + "/metrics.jsonl"}, 2, "is there and is no page of `tandem view`"},
           {{"view", path, "--output", path}, 2, "is a directory; name a file"},
           {{"view", path, "--output", "/dev/null"}, 2, "--output /dev/null: is no regular file, and a page takes"},
           {{"view", path, "--output", "/proc/nowhere/view.html"}, 3, "/proc"},
           {{"view", path, "--lr", "1"}, 2, "--lr: is a flag of `tandem train` and not of `tandem view`"},
           {{"train", path}, 2, "unexpected argument"}}) {
    const Captured refused = run(each.arguments);
    EXPECT_EQ(refused.code, each.code) << refused.err;
    EXPECT_NE(refused.err.find(each.says), std::string::npos) << refused.err << "\nwanted: " << each.says;
  }
}

TEST_F(View, HelpNamesTheWordsBeforeTheFlags) {
  const Captured help = run({"view", "--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_NE(help.out.find("Usage: tandem view RUN ...\n"), std::string::npos) << help.out;
}

}  // namespace
}  // namespace tandem::cli
