// Checks that a run is closed: it listens nowhere, and its files hold no secret of the environment and no home
// directory.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstdlib>
#include <map>

#include "tests/cli/resume/spoiled_run.h"
#include "tests/cli/tiny_run.h"
#include "tests/cli/workers/process_sockets.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

Arguments with_tensorboard(Arguments arguments) {
  std::replace(arguments.begin(), arguments.end(), std::string("--no-use-tensorboard"),
               std::string("--use-tensorboard"));
  return arguments;
}

// A socket of this process that is bound to an address and listens there.
class Listener {
 public:
  Listener(int type, uint32_t address) : descriptor_(socket(AF_INET, type, 0)) {
    sockaddr_in where = {};
    where.sin_family = AF_INET;
    where.sin_addr.s_addr = htonl(address);
    EXPECT_EQ(bind(descriptor_, reinterpret_cast<const sockaddr*>(&where), sizeof where), 0);
    if (type == SOCK_STREAM) {
      EXPECT_EQ(listen(descriptor_, 1), 0);
    }
  }
  ~Listener() { close(descriptor_); }

 private:
  int descriptor_;
};

std::vector<InternetSocket> open_doors(pid_t root) {
  std::vector<InternetSocket> result;
  for (const std::string& pid : process_tree(root)) {
    for (const InternetSocket& socket : internet_sockets(pid)) {
      if (socket.listens && !socket.is_loopback()) result.push_back(socket);
    }
  }
  return result;
}

TEST(Closed, TheTestSeesListeners) {
  EXPECT_TRUE(internet_sockets(std::to_string(getpid())).empty());
  {
    const Listener inside(SOCK_STREAM, INADDR_LOOPBACK);
    EXPECT_EQ(internet_sockets(std::to_string(getpid())).size(), 1U);
    EXPECT_TRUE(open_doors(getpid()).empty());
  }
  for (const int type : {SOCK_STREAM, SOCK_DGRAM}) {
    const Listener outside(type, INADDR_ANY);
    EXPECT_EQ(open_doors(getpid()).size(), 1U);
  }
}

TEST(Closed, ARunHasNoInternetSocket) {
  base::TemporaryDirectory folder;
  const Program program(with_tensorboard(
      with_flag(with_custom_reward(train_arguments(folder / "run"), write_reward(folder)), "--num-rollout", "100000")));
  const std::string first = folder / "run/samples/rollout_000000.jsonl";
  for (int i = 0; i < 600 && !base::file_exists(first); ++i) usleep(100'000);
  if (!base::file_exists(first)) program.signal(SIGKILL);
  ASSERT_TRUE(base::file_exists(first));
  size_t num_processes = 0, num_sockets = 0;
  for (int i = 0; i < 20; ++i) {
    for (const std::string& pid : process_tree(getpid())) {
      num_processes += 1;
      num_sockets += open_sockets(pid).size();
      for (const InternetSocket& socket : internet_sockets(pid)) {
        ADD_FAILURE() << "process " << pid << " has a socket of " << socket.protocol << " at " << socket.address;
      }
    }
    usleep(50'000);
  }
  EXPECT_GE(num_processes, 20U * 5) << "this test, its run, a text worker, graders";
  EXPECT_GT(num_sockets, 0U) << "workers are spoken to over socket pairs";
  program.signal(SIGINT);
  EXPECT_EQ(program.wait(), 130);
}

using Variables = std::map<std::string, std::string>;

// Sets variables of this process, and so of those that it starts, for its lifetime.
class Environment {
 public:
  explicit Environment(const Variables& variables) {
    for (const auto& [name, value] : variables) {
      const char* const before = getenv(name.c_str());
      if (before != nullptr) before_[name] = before;
      names_.push_back(name);
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~Environment() {
    for (const std::string& name : names_) {
      if (before_.count(name) == 0) unsetenv(name.c_str());
    }
    for (const auto& [name, value] : before_) setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  Variables before_;
  std::vector<std::string> names_;
};

// Returns everything below `folder` that holds `needle` (a link counts by its target), except what reward functions
// print themselves.
std::vector<std::string> files_with(const std::string& folder, const std::string& needle) {
  std::vector<std::string> result;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().string();
    const bool is_link = entry.is_symlink();
    if ((!is_link && !entry.is_regular_file()) || entry.path().filename() == "grader_output.txt") continue;
    const std::string content = is_link ? fs::read_symlink(entry.path()).string() : base::read_file(name);
    if (content.find(needle) != std::string::npos ||
        fs::relative(name, folder).string().find(needle) != std::string::npos)
      result.push_back(name);
  }
  return result;
}

// Model, data, reward and run lie in the home directory, some groups of grades fail, and the reward's message quotes a
// key.
TEST(Closed, FilesHoldNoSecretAndNoHomeDirectory) {
  base::TemporaryDirectory folder;
  fs::create_directory(folder / "canary-home");
  const std::string home = folder / "canary-home";
  const std::string model = writable_model(home + "/model");
  replace_text(model + "/config.json", "{", "{\"_name_or_path\": \"" + home + "/model\", ");
  replace_text(model + "/tokenizer_config.json", "{", "{\"name_or_path\": \"" + home + "/model\", ");
  fs::copy(kPrompts, home + "/data.jsonl");
  const std::string reward = write_reward_of(home,
                                             "if any(len(c[0]['content']) % 8 == 0 for c in completions):\n"
                                             "        raise ValueError('no answer for wandb-canary-' + '0123456789')\n"
                                             "    return [float(len(c[0]['content']) % 5) for c in completions]");
  const Variables environment = {{"HOME", home},
                                 {"HF_TOKEN", "hf_canary_0123456789"},
                                 {"WANDB_API_KEY", "wandb-canary-0123456789"},
                                 {"AWS_SECRET_ACCESS_KEY", "aws-canary-0123456789"}};
  const Environment planted(environment);
  Arguments arguments = with_tensorboard(with_custom_reward(train_arguments(home + "/run"), reward));
  arguments = with_flag(with_flag(arguments, "--hf-checkpoint", model), "--prompt-data", home + "/data.jsonl");
  arguments.insert(arguments.end(), {"--save-interval", "1", "--rollout-max-prompt-len", "1000", "--eval-prompt-data",
                                     "held", home + "/data.jsonl@[0:3]", "--eval-interval", "1"});
  ASSERT_EQ(Program(arguments).wait(), 0);
  const std::string log = base::read_file(home + "/run/log.txt");
  EXPECT_NE(log.find("~/run"), std::string::npos) << log;
  for (const auto& [name, value] : environment) {
    EXPECT_EQ(files_with(home + "/run", value), std::vector<std::string>()) << name;
  }

  // The run can be repeated although its config.toml says "~".
  ASSERT_EQ(Program({"train", "--config", home + "/run/config.toml", "--save", home + "/again"}).wait(), 0);
  EXPECT_EQ(base::read_file(home + "/run/hf/latest/model.safetensors"),
            base::read_file(home + "/again/hf/latest/model.safetensors"));
}

// A checkpoint remembers the flags that results depend on, and some of them are texts. state.json once held secrets and
// the home directory, and nobody else could resume the run.
TEST(Closed, CheckpointsHoldNoTextOfFlagsAndGoOnInAnotherHome) {
  base::TemporaryDirectory folder;
  const std::string first = folder / "first-home", second = folder / "second-home";
  fs::create_directory(first);
  writable_model(first + "/model");
  const std::string reward = write_reward(folder), secret = "canary-supersecret-12345";
  const auto arguments = [&](const std::string& home, const std::string& num_rollouts, const Arguments& more) {
    Arguments words = with_custom_reward(train_arguments(home + "/run"), reward);
    words = with_flag(words, "--num-rollout", num_rollouts);
    const Arguments texts = {"--rollout-stop",
                             secret,
                             "--apply-chat-template-kwargs",
                             "{\"key\":\"" + secret + "\"}",
                             "--metadata-key",
                             secret,
                             "--use-kl-loss",
                             "--kl-loss-coef",
                             "0.1",
                             "--save-interval",
                             "1"};
    words.insert(words.end(), texts.begin(), texts.end());
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  {
    const Environment planted({{"HOME", first}, {"MY_API_KEY", secret}});
    const Captured result = run(arguments(first, "1", {"--ref-load", first + "/model"}));
    ASSERT_EQ(result.code, 0) << result.err;
  }
  for (const std::string& canary : {secret, first}) {
    EXPECT_EQ(files_with(first + "/run", canary), std::vector<std::string>()) << canary;
  }
  // In another account, without that variable, the same ~/model is the same flag, and another model is another.
  fs::rename(first, second);
  writable_model(second + "/other");
  const Environment moved({{"HOME", second}});
  const Captured other = run(arguments(second, "2", {"--ref-load", second + "/other", "--load", second + "/run"}));
  expect_one_line_failure(other, 2, "the run would resume differently: --ref-load was ~/model and is ~/other; give");
  const Arguments stop = {"--ref-load", second + "/model", "--load", second + "/run", "--rollout-stop", "###"};
  expect_one_line_failure(run(arguments(second, "2", stop)), 2, "--rollout-stop is not what it was");
  const Captured result = run(arguments(second, "2", {"--ref-load", "~/model", "--load", second + "/run"}));
  EXPECT_EQ(result.code, 0) << result.err;
}

}  // namespace
}  // namespace tandem::cli
