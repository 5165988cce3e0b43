// Workers are found beside the program, start without the user's Python settings where none of his code runs, and name
// the cause where they do not start.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "reward/graders.h"
#include "tandem/error.h"
#include "tests/base/temporary_directory.h"
#include "tests/base/thrown.h"
#include "tests/base/variable.h"
#include "text/text_worker.h"
#include "worker/child_environment.h"
#include "worker/spawn.h"
#include "worker/worker_place.h"

namespace tandem::worker {
namespace {

namespace fs = std::filesystem;

const std::string kModel = "tests/golden/models/qwen3-tied";

void touch(const std::string& path) {
  base::make_directories(fs::path(path).parent_path().string());
  base::write_file_durably(path, "");
}

TEST(WorkerPlace, IsBesideTheProgramWhereverItWasMoved) {
  base::TemporaryDirectory folder;
  const std::string old = folder / "old", moved = folder / "moved";
  for (const std::string& root : {old, moved}) {
    touch(root + "/python/tandem_worker/protocol.py");
    touch(root + "/.venv/bin/python");
  }
  const BuildPlace build = {.root = old, .python = ""};
  WorkerPlace place = find_worker(moved + "/build/release/src/cli", build);
  EXPECT_EQ(place.directory, moved + "/python");
  EXPECT_EQ(place.python, moved + "/.venv/bin/python");

  // A program that was copied away, alone or with its sources, still has what it was built with.
  place = find_worker(folder / "elsewhere", build);
  EXPECT_EQ(place.directory, old + "/python");
  EXPECT_EQ(place.python, old + "/.venv/bin/python");
  fs::remove_all(moved + "/.venv");
  place = find_worker(moved, build);
  EXPECT_EQ(place.directory, moved + "/python");
  EXPECT_EQ(place.python, old + "/.venv/bin/python");

  // An interpreter that was named for the build is meant.
  touch(folder / "other/python3");
  place = find_worker(moved, {.root = old, .python = folder / "other/python3"});
  EXPECT_EQ(place.python, folder / "other/python3");
}

TEST(Spawn, AMissingTandemIsNoMissingPython) {
  try {
    spawn_tandem({"--help"}, 2);
    FAIL() << "there is no tandem beside this test";
  } catch (const EnvironmentError& error) {
    const std::string line = error.what();
    EXPECT_TRUE(line.starts_with("cannot start /")) << line;
    EXPECT_TRUE(line.ends_with("/tandem: No such file or directory; put the program tandem of the same build there"))
        << line;
  }
}

std::string failure_of(const std::string& program_folder, const BuildPlace& build) {
  return base::thrown_by<EnvironmentError>([&] { find_worker(program_folder, build); });
}

TEST(WorkerPlace, ErrorsNameTheFoldersWhereItWasLookedFor) {
  base::TemporaryDirectory folder;
  const std::string nowhere = failure_of(folder / "a/b", {.root = folder / "gone", .python = ""});
  for (const std::string& name : {folder / "a/b", folder / "a", folder.path(), folder / "gone"}) {
    EXPECT_NE(nowhere.find(" " + name + (name == folder / "gone" ? ";" : ",")), std::string::npos) << nowhere;
  }
  EXPECT_NE(nowhere.find("copy the folders python and .venv"), std::string::npos) << nowhere;
  touch(folder / "python/tandem_worker/protocol.py");
  const std::string no_python = failure_of(folder / "a", {.root = folder / "gone", .python = ""});
  EXPECT_NE(no_python.find(folder / ".venv/bin/python"), std::string::npos) << no_python;
  EXPECT_NE(no_python.find("make setup"), std::string::npos) << no_python;
}

TEST(WorkerPlace, OfAWheelIsBesideTheProgramAloneAndItsLauncherNamesTheInterpreter) {
  base::TemporaryDirectory folder;
  // The tests' working directory has python/tandem_worker and .venv, which nobody asked for.
  EXPECT_NE(failure_of(folder / "site/tandem/bin", {.root = "", .python = ""}), "");
  touch(folder / "site/tandem/python/tandem_worker/protocol.py");
  const std::string no_python = failure_of(folder / "site/tandem/bin", {.root = "", .python = ""});
  EXPECT_NE(no_python.find("start the program by the command `tandem`"), std::string::npos) << no_python;
  touch(folder / "bin/python3");
  const WorkerPlace place = find_worker(folder / "site/tandem/bin", {.root = "", .python = folder / "bin/python3"});
  EXPECT_EQ(place.directory, folder / "site/tandem/python");
  EXPECT_EQ(place.python, folder / "bin/python3");
}

using base::Variable;

reward::GraderConfig exact_graders() {
  reward::GraderConfig config;
  config.worker = default_worker_config();
  config.rm_types = {"exact"};
  config.limits.num_processes = 1;
  return config;
}

std::string failure_of_graders() {
  return base::thrown_by<EnvironmentError>([&] { const reward::Graders graders(exact_graders()); });
}

// A reward's author reads there which variables it sees; all others are gone in the sandbox, unless they are named.
TEST(WorkerStart, ThePageHasTheVariablesThatTheSandboxKeeps) {
  const std::string page = base::read_file("docs/REWARDS.md");
  for (const std::string_view name : kKeptVariables) {
    EXPECT_NE(page.find("`" + std::string(name) + "`"), std::string::npos) << name;
  }
  const Variable kept("LC_TIME", "C"), named("DATA_OF_A_TEST", "x"), other("MORE_DATA_OF_A_TEST", "x");
  WorkerConfig config = default_worker_config();
  const auto sees = [&](const std::string& entry) {
    const std::vector<std::string> entries = child_environment(config, /*runs_users_code=*/true);
    return std::ranges::find(entries, entry) != entries.end();
  };
  EXPECT_TRUE(sees("LC_TIME=C"));
  EXPECT_FALSE(sees("DATA_OF_A_TEST=x"));
  config.variables = {"DATA_OF_A_TEST"};
  EXPECT_TRUE(sees("LC_TIME=C"));
  EXPECT_TRUE(sees("DATA_OF_A_TEST=x"));
  EXPECT_FALSE(sees("MORE_DATA_OF_A_TEST=x"));
}

TEST(WorkerStart, TheUsersPythonSettingsReachHisCodeAlone) {
  base::TemporaryDirectory folder;
  base::write_file_durably(folder / "json.py", "raise ImportError('a json of my own')\n");
  {
    const Variable path("PYTHONPATH", folder.path());
    text::TextWorker worker(default_worker_config(), kModel);
    EXPECT_FALSE(worker.encode({"1 + 1"}).empty());
    const std::string failure = failure_of_graders();
    EXPECT_NE(failure.find("its last line: ImportError: a json of my own"), std::string::npos) << failure;
    EXPECT_NE(failure.find("PYTHONPATH changes where Python finds its own modules: unset it"), std::string::npos)
        << failure;
  }
  const Variable home("PYTHONHOME", folder.path());
  text::TextWorker worker(default_worker_config(), kModel);
  EXPECT_FALSE(worker.encode({"1 + 1"}).empty());
  const std::string failure = failure_of_graders();
  EXPECT_NE(failure.find("its last line: ModuleNotFoundError: No module named 'encodings'"), std::string::npos)
      << failure;
  EXPECT_NE(failure.find("PYTHONHOME changes where Python finds its own modules: unset it"), std::string::npos)
      << failure;
}

TEST(WorkerStart, ALauncherNamesTheInterpreter) {
  base::TemporaryDirectory folder;
  const std::string python = folder / "bin/python3";
  touch(python);
  EXPECT_NE(default_worker_config().python, python);
  const Variable launcher("TANDEM_WORKER_PYTHON", python);
  EXPECT_EQ(default_worker_config().python, python);
}

TEST(WorkerStart, AWorkerThatDoesNotStartNamesItsLastLineAndTheRemedy) {
  base::TemporaryDirectory folder;
  base::make_directories(folder / "tandem_worker");
  base::write_file_durably(folder / "tandem_worker/tokenizer.py",
                           "raise SystemExit('tokenizers is of another Python')\n");
  WorkerConfig config = default_worker_config();
  config.worker_directory = folder.path();
  try {
    text::TextWorker worker(config, kModel);
    FAIL() << "it started";
  } catch (const EnvironmentError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("its last line: tokenizers is of another Python; "), std::string::npos) << message;
    EXPECT_NE(message.find("`make setup` mends .venv"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace tandem::worker
