#include "device_check/ranks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/files.h"
#include "base/sha256.h"
#include "mesh/network.h"
#include "worker/spawn.h"

namespace tandem::device_check {

namespace {

constexpr double kRunSeconds = 600.0;  // the longest that a run may take
constexpr double kEndSeconds = 60.0;   // the longest that ranks may go on without one of them

// A folder with what the runs read and write, removed at the end.
class Folder {
 public:
  Folder() {
    const std::string parent = base::temporary_directory();
    std::string name = parent + "/tandem-device-XXXXXX";
    TANDEM_ENV_CHECK(mkdtemp(name.data()) != nullptr,
                     parent +
                         ": no folder for the runs of several ranks can be made; set TMPDIR to a folder "
                         "that can be written");
    path_ = name;
    std::ofstream(path_ + "/prompts.jsonl") << "{\"prompt\": \"2 + 2 = \"}\n{\"prompt\": \"The sky is\"}\n{\"prompt\": "
                                               "\"One, two,\"}\n{\"prompt\": \"a\"}\n";
    // The reward only has to differ between completions.
    std::ofstream(path_ + "/reward.py") << "def reward(prompts, completions, **kwargs):\n"
                                           "    return [float(len(str(c)) % 5) for c in completions]\n";
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Returns the first line that tells of an error, which is the cause of the others; else the last line.
std::string why_of(const std::string& text) {
  std::istringstream lines(text);
  std::string last = "it said nothing";
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) last = line;
    if (line.find("error: ") != std::string::npos) break;
  }
  return last;
}

// A `tandem train`, whose words go to a file. It is killed with its ranks when this object ends.
class Run {
 public:
  Run(const config::DeviceConfig& config, const Folder& folder, const std::string& name, int64_t ranks,
      int64_t rollouts)
      : log_(fmt::format("{}/{}.log", folder.path(), name)), save_(folder.path() + "/" + name) {
    const std::string backend = config.model.device.substr(0, config.model.device.find(':'));
    std::vector<std::string> words = {"train",
                                      "--colocate",
                                      "--hf-checkpoint",
                                      config.model.hf_checkpoint,
                                      "--prompt-data",
                                      folder.path() + "/prompts.jsonl",
                                      "--custom-rm-path",
                                      folder.path() + "/reward.py:reward",
                                      "--rollout-batch-size",
                                      "4",
                                      "--n-samples-per-prompt",
                                      "4",
                                      "--rollout-max-response-len",
                                      "16",
                                      "--lr",
                                      "1e-4",
                                      "--num-rollout",
                                      std::to_string(rollouts),
                                      "--no-use-tensorboard",
                                      "--sample-dump-interval",
                                      "0",
                                      "--device",
                                      ranks == 1 ? config.model.device : backend,
                                      "--save",
                                      save_};
    if (ranks > 1) words.insert(words.end(), {"--actor-num-gpus-per-node", std::to_string(ranks)});
    const mesh::OwnedDescriptor log(open(log_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    process_ = worker::spawn_tandem(std::move(words), log.get());
  }
  ~Run() {
    if (!status_) kill(-process_, SIGKILL);
    if (!status_) waitpid(process_, nullptr, 0);
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // Returns whether it has ended within so many seconds.
  bool ends(double seconds) {
    const base::Clock::time_point begin = base::Clock::now();
    int status = 0;
    while (!status_) {
      if (waitpid(process_, &status, WNOHANG) == process_) status_ = status;
      if (status_ || base::seconds_since(begin) >= seconds) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return status_.has_value();
  }
  std::optional<int> status() const { return status_; }
  const std::string& save() const { return save_; }
  std::string why() const { return why_of(base::read_file(log_)); }
  // Kills the last of the ranks that it has started. Returns whether there was one.
  bool kill_a_rank() const {
    std::ifstream children(fmt::format("/proc/{0}/task/{0}/children", process_));
    pid_t last = 0;
    for (pid_t child = 0; children >> child;) last = child;
    return last > 0 && kill(last, SIGKILL) == 0;
  }

 private:
  const std::string log_, save_;
  pid_t process_ = -1;
  std::optional<int> status_;
};

// Returns the SHA-256 of what a run has trained; "" and what it said last in `why` if it did not end well.
std::string trained(const config::DeviceConfig& config, const Folder& folder, int64_t ranks, std::string& why) {
  Run run(config, folder, fmt::format("{}-ranks", ranks), ranks, /*rollouts=*/3);
  if (!run.ends(kRunSeconds) || *run.status() != 0) {
    why = run.status() ? fmt::format("a run of {} {}: {}", ranks, worker::describe_exit(*run.status()), run.why())
                       : fmt::format("a run of {} did not end within {:g} s", ranks, kRunSeconds);
    return "";
  }
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(run.save() + "/hf/latest")) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  std::string bytes;
  for (const std::string& file : files) bytes += base::read_file(file);
  return base::sha256(bytes);
}

}  // namespace

void ask_ranks(const config::DeviceConfig& config, Answers& answers) {
  answers.begin("ranks");
  const Folder folder;
  std::string why;
  const std::string one = trained(config, folder, 1, why);
  const std::string several = one.empty() ? "" : trained(config, folder, config.ranks, why);
  if (why.empty() && one != several) why = "their weights differ";
  answers.answer(fmt::format("{} processes train to the bits of one", config.ranks), why.empty(), why);
  if (several.empty()) return;
  Run run(config, folder, "killed", config.ranks, /*rollouts=*/100'000);
  const base::Clock::time_point begin = base::Clock::now();
  while (!std::filesystem::exists(run.save() + "/metrics.jsonl") && !run.ends(0.2) &&
         base::seconds_since(begin) < kRunSeconds) {
  }
  const bool all_end = !run.status() && run.kill_a_rank() && run.ends(kEndSeconds) && *run.status() != 0;
  answers.answer("where one of them is killed, all of them end", all_end, all_end ? "" : run.why());
}

}  // namespace tandem::device_check
