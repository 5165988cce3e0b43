// Checks what a user meets at the edges of a machine and of the data: output that is lost, limits, closed folders,
// tokens and flags that do not exist. Each is reported in a line, with the exit code of whose fault it is.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <new>
#include <regex>
#include <system_error>

#include "device/thread_pool.h"
#include "tandem/error.h"
#include "tests/cli/resume/spoiled_run.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

// Runs the program in a shell after `before` (ulimit) and with `redirection` of its standard output.
Captured in_shell(const std::string& before, const std::string& arguments, const std::string& redirection) {
  const base::TemporaryDirectory folder;
  const std::string errors = folder / "err";
  const std::string command =
      before + "; exec '" + TANDEM_PROGRAM + "' " + arguments + " " + redirection + " 2> " + errors;
  Captured result;
  const int status = std::system(command.c_str());
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  result.err = base::read_file(errors);
  return result;
}

// Returns the exit code of `work` in a child process.
int exit_code_of(const std::function<int()>& work) {
  const pid_t child = fork();
  if (child == 0) {
    const int code = work();
    std::fflush(nullptr);
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Returns the same for a user who is not root.
int exit_code_of_nobody(const std::function<int()>& work) {
  return exit_code_of([&] { return geteuid() == 0 && setuid(65534) != 0 ? 99 : work(); });
}

TEST(Edges, AResultThatStandardOutputLosesIsNoSuccess) {
  const std::string eval = "eval --hf-checkpoint " + kModel + " --eval-prompt-data a " + kPrompts +
                           "@[0:2] --rm-type math --rollout-max-response-len 4 --quiet";
  expect_one_line_failure(in_shell(":", eval, "> /dev/full"), 3, "standard output: cannot be written");
  for (const Arguments& arguments :
       {Arguments{"plan", "--hf-checkpoint", kModel}, Arguments{"--help"}, Arguments{"--version"},
        Arguments{"train", "--help"}, Arguments{"train", "--print-config"}}) {
    const auto code_with = [&](const char* output) {
      return exit_code_of([&] {
        if (std::freopen(output, "w", stdout) == nullptr || std::freopen("/dev/null", "w", stderr) == nullptr)
          return 99;
        return run_command_line(arguments);
      });
    };
    EXPECT_EQ(code_with("/dev/full"), 3) << arguments.back();
    EXPECT_EQ(code_with("/dev/null"), 0) << arguments.back();
  }
}

// An export replaces its folder, so the one above must be writable too.
TEST(Edges, AnExportNeedsTheFolderAboveItsOutput) {
  const base::TemporaryDirectory folder;
  const std::string above = folder / "above", output = folder / "above/out";
  base::make_directories(output);
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0755));
  std::filesystem::permissions(output, std::filesystem::perms(0777));
  for (const auto& [mode, code] : {std::pair{0555, 3}, {0777, 0}}) {
    std::filesystem::permissions(above, std::filesystem::perms(mode));
    EXPECT_EQ(exit_code_of_nobody([&] {
                return run_command_line({"export", "--hf-checkpoint", kModel, "--output", output, "--dry-run"});
              }),
              code);
  }
}

// `tandem train --help | head` closes the pipe before all is written.
TEST(Edges, AReaderOfHelpMayLeave) {
  for (const Arguments& arguments : {Arguments{"--help"}, Arguments{"train", "--help"}}) {
    const int code = exit_code_of([&] {
      int ends[2] = {};
      if (pipe(ends) != 0 || close(ends[0]) != 0 || dup2(ends[1], STDOUT_FILENO) < 0) return 99;
      std::signal(SIGPIPE, SIG_IGN);  // handled as in main()
      return run_command_line(arguments);
    });
    EXPECT_EQ(code, 0) << arguments.back();
  }
}

// A program whose address space is limited needs the build without sanitizers, which take terabytes.
#if !defined(__SANITIZE_ADDRESS__)
TEST(Edges, LittleAddressSpaceIsTheMachinesFault) {
  for (const char* kib : {"500000", "700000", "1000000"}) {
    const Captured result = in_shell(std::string("ulimit -v ") + kib,
                                     "generate --hf-checkpoint " + kModel + " --prompt-data " + kPrompts +
                                         "@[0:1] --rollout-max-response-len 4 --output -",
                                     "> /dev/null");
    EXPECT_TRUE(result.code == 3 || result.code == 0) << kib << ": " << result.code << " " << result.err;
    EXPECT_EQ(result.err.find("bug in Tandem"), std::string::npos) << result.err;
  }
}
#endif

TEST(Edges, ASmallStackIsRefusedInALine) {
  expect_one_line_failure(in_shell("ulimit -s 64", "--version", "> /dev/null"), 3, "ulimit -s 8192");
  EXPECT_EQ(in_shell("ulimit -s 1024", "--version", "> /dev/null").code, 0);
}

int code_of(const std::function<void()>& failing, std::string& line) {
  testing::internal::CaptureStderr();
  int code = 0;
  try {
    failing();
  } catch (...) {
    code = report_failure(std::current_exception());
  }
  line = testing::internal::GetCapturedStderr();
  return code;
}

TEST(Edges, WhatTheMachineRefusesIsNoBug) {
  std::string line;
  const auto system_error = [](std::errc code) { throw std::system_error(std::make_error_code(code)); };
  EXPECT_EQ(code_of([&] { system_error(std::errc::resource_unavailable_try_again); }, line), 3);
  EXPECT_NE(line.find("ulimit -u"), std::string::npos) << line;
  EXPECT_EQ(code_of([&] { system_error(std::errc::not_enough_memory); }, line), 3);
  EXPECT_NE(line.find("out of memory: lower what the command has of "), std::string::npos) << line;
  EXPECT_NE(line.find("--n-samples-per-prompt"), std::string::npos) << "the flag of generate: " << line;
  EXPECT_EQ(code_of([] { throw std::bad_alloc(); }, line), 3);
  EXPECT_EQ(code_of([&] { system_error(std::errc::invalid_argument); }, line), 1);
  EXPECT_NE(line.find("bug in Tandem"), std::string::npos) << line;
}

TEST(Edges, ThreadsThatTheMachineRefusesAreNamed) {
  EXPECT_EQ(exit_code_of_nobody([] {
              const rlimit few = {4, 4};
              if (setrlimit(RLIMIT_NPROC, &few) != 0) return 98;
              try {
                const device::ThreadPool threads(4096);
              } catch (const EnvironmentError& error) {
                return std::string(error.what()).find("lower --num-threads") != std::string::npos ? 0 : 97;
              }
              return 96;
            }),
            0);
}

TEST(Edges, PermissionDeniedIsSaid) {
  const base::TemporaryDirectory folder;
  base::make_directories(folder / "closed/model");
  const std::string errors = folder / "err";
  base::write_file_durably(errors, "");
  ASSERT_EQ(chmod(errors.c_str(), 0666), 0);
  ASSERT_EQ(chmod(folder.path().c_str(), 0755), 0);
  ASSERT_EQ(chmod((folder / "closed").c_str(), 0), 0);
  const int code = exit_code_of_nobody([&] {
    if (std::freopen(errors.c_str(), "w", stderr) == nullptr) return 99;
    return run_command_line({"generate", "--hf-checkpoint", folder / "closed/model", "--prompt-data", kPrompts,
                             "--output", "-", "--dry-run"});
  });
  ASSERT_EQ(chmod((folder / "closed").c_str(), 0755), 0);
  EXPECT_EQ(code, 2);
  const std::string line = base::read_file(errors);
  EXPECT_NE(line.find("closed/model: cannot look at: Permission denied"), std::string::npos) << line;
  EXPECT_EQ(line.find("no such"), std::string::npos) << line;
}

TEST(Edges, WhatTheModelHasNotIsRefusedByTheNameThatWasTyped) {
  const Arguments checked = train_arguments("runs/none", {"--dry-run"});
  const auto with = [&](const Arguments& more) {
    Arguments arguments = checked;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  };
  expect_one_line_failure(with({"--rollout-stop-token-ids", "99999"}), 2,
                          "--rollout-stop-token-ids 99999: the model has no such token, its ids are 0 to 511");
  expect_one_line_failure(with({"--use-kl-loss", "--kl-loss-coef", "0.1", "--ref-load", "/nope"}), 2,
                          "error: --ref-load /nope: no such directory");
  expect_one_line_failure(with({"--use-kl-loss", "--kl-loss-coef", "0.1", "--ref-load", "tests/golden/lora"}), 2,
                          "error: --ref-load tests/golden/lora: is an adapter, and a model is needed here");
  expect_one_line_failure(
      with({"--eval-interval", "1", "--eval-prompt-data", "a", kPrompts, "--eval-max-response-len", "16384"}), 2,
      "error: --eval-max-response-len 16384: ");
}

TEST(Edges, ATokenizerOfAnotherModelIsSaid) {
  const base::TemporaryDirectory folder;
  const std::string model = writable_model(folder / "model");
  const auto warnings = [&] {
    return run({"generate", "--hf-checkpoint", model, "--prompt-data", kPrompts, "--output", "-", "--dry-run"}).err;
  };
  EXPECT_EQ(warnings(), "");
  replace_text(model + "/config.json", "\"vocab_size\": 512", "\"vocab_size\": 2000");
  EXPECT_NE(warnings().find("tokenizer.json: has 484 ids where the model's vocabulary has 2000"), std::string::npos);
  replace_text(model + "/config.json", "\"eos_token_id\": 473", "\"eos_token_id\": 1999");
  EXPECT_NE(warnings().find("tokenizer.json: has no token 1999, the model's EOS (its ids end at 483)"),
            std::string::npos);
}

int64_t bytes_below(const std::string& folder) {
  int64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && !entry.is_symlink()) bytes += static_cast<int64_t>(entry.file_size());
  }
  return bytes;
}

// A run asks for about the space that it takes: not less than its checkpoints, and not nine times as much.
TEST(Edges, FreeSpaceIsAskedForWhatIsWritten) {
  const base::TemporaryDirectory folder;
  const Arguments arguments = with_flag(
      with_flag(train_arguments(folder / "run", {"--save-interval", "2"}), "--num-rollout", "8"), "--rm-type", "exact");
  Arguments asked = arguments;
  asked.emplace_back("--dry-run");
  const Captured plan = run(asked);
  ASSERT_EQ(plan.code, 0) << plan.err;
  std::smatch match;
  ASSERT_TRUE(std::regex_search(plan.out, match, std::regex("on disk: about [0-9.]+ MiB, ([0-9]+) bytes \\(hf/")))
      << plan.out;
  const int64_t needed = std::stoll(match[1]);
  ASSERT_EQ(run(arguments).code, 0);
  const int64_t written = bytes_below(folder / "run");
  EXPECT_GE(needed, bytes_below(folder / "run/hf") + bytes_below(folder / "run/checkpoints"));
  EXPECT_GE(3 * needed, 2 * written);
  EXPECT_LE(needed, 3 * written + (4 << 20)) << "where " << written << " were written";
  // A run that goes on in place is asked for what it adds: each new checkpoint takes the place of one that is there.
  Arguments further = with_flag(asked, "--num-rollout", "16");
  further.insert(further.end(), {"--load", folder / "run"});
  const Captured rest = run(further);
  ASSERT_EQ(rest.code, 0) << rest.err;
  ASSERT_TRUE(std::regex_search(rest.out, match, std::regex("on disk: about [0-9.]+ MiB, ([0-9]+) bytes \\(hf/")))
      << rest.out;
  EXPECT_LE(std::stoll(match[1]), needed - bytes_below(folder / "run/checkpoints"));
}

}  // namespace
}  // namespace tandem::cli
