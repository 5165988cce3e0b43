// Reward code that attacks, on machines that give all layers of the sandbox and on such as lack some. What remains open
// there is a table in docs/REWARDS.md, which the first test goes through cell by cell.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "tandem/error.h"
#include "tests/reward/grader_fixture.h"
#include "tests/worker/machines.h"
#include "tests/worker/process_facts.h"

namespace tandem::reward {
namespace {

using worker::Machine;

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int64_t kMemoryBytes = int64_t{256} << 20;
const std::string kRewards = "tests/reward/rewards/";

// These are the columns of the table. The first holds for root and for a user.
const std::vector<Machine> kMachines = {
    {.name = "all layers"},
    {.name = "Docker's default", .namespaces = false, .container = true},
    {.name = "no Landlock", .landlock = false},
    {.name = "neither, root", .namespaces = false, .landlock = false},
    {.name = "neither, user", .namespaces = false, .landlock = false, .as_root = false},
};
const Machine kNoMounts = {.name = "no mounts", .mounts = false};
const Machine kCoveredProc = {.name = "covered /proc", .whole_proc = false};
const Machine kAllAsUser = {.name = "all layers, as a user", .as_root = false};

std::vector<Machine> machines_without_a_layer() {
  std::vector<Machine> machines(kMachines.begin() + 1, kMachines.end());
  machines.push_back(kNoMounts);
  machines.push_back(kCoveredProc);
  return machines;
}

std::vector<Machine> all_machines() {
  std::vector<Machine> machines = machines_without_a_layer();
  machines.push_back(kMachines.front());
  return machines;
}

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// A folder that everybody can read, with a copy of the attacks and a victim.
class Scene {
 public:
  Scene() {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    fs::permissions(folder_, fs::perms::all);
    for (const char* name : {"attacks.py", "attacks_import.py"}) fs::copy_file(kRewards + name, folder_ / name);
    std::ofstream(folder_ / "victim") << "precious";
    if (::geteuid() == 0) {
      EXPECT_EQ(::chown((folder_ / "victim").c_str(), 0, 0), 0);
    }
  }
  ~Scene() { fs::remove_all(folder_); }
  Scene(const Scene&) = delete;
  Scene& operator=(const Scene&) = delete;
  std::string path(const std::string& name) const { return folder_ / name; }

  GraderConfig config(const std::string& file = "attacks.py") const {
    GraderConfig config = function("");
    config.custom_rm_path = path(file) + ":score";
    config.limits.memory_bytes = kMemoryBytes;
    config.limits.deadline_s = 20;
    config.warn_of_missing_layers = false;
    return config;
  }

 private:
  fs::path folder_ = fs::path("/tmp") / ("tandem_attacks_" + std::to_string(::getpid()));
};

// Returns what the machine lacks of all layers; "" where it has them.
const std::string& incomplete() {
  static const std::string reason = worker::on_machine({.name = ""}, []() -> std::string {
    GraderConfig config = rule("exact");
    config.sandbox = worker::Sandbox::kRequire;
    const Graders graders(config);
    return "";
  });
  return reason;
}

// Returns why tests cannot run as a user here; "" where they can.
const std::string& no_user() {
  static const std::string reason = worker::on_machine(kAllAsUser, []() -> std::string {
    const worker::WorkerConfig worker = worker::default_worker_config();
    const bool reads = ::access(worker.python.c_str(), X_OK) == 0 && ::access(kRewards.c_str(), R_OK) == 0;
    return reads ? "" : "another user cannot read " + worker.python;
  });
  return reason;
}

std::string why_not_on(const Machine& machine) {
  if (((machine.as_root && machine.container) || !machine.whole_proc) && ::geteuid() != 0) return "needs root";
  if (!machine.as_root && ::geteuid() == 0 && !no_user().empty()) return no_user();
  return (machine.namespaces || machine.landlock) ? incomplete() : "";
}

// A terminal that controls this process and what it starts. It belongs to whoever calls.
std::string take_terminal() {
  const int main_end = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (main_end < 0 || ::grantpt(main_end) != 0 || ::unlockpt(main_end) != 0) return "/dev/tty";
  const std::string name = ::ptsname(main_end);
  const int terminal = ::open(name.c_str(), O_RDWR);
  ::ioctl(terminal, TIOCSCTTY, 0);
  ::dup2(terminal, 0);
  return name;
}

// The aims of attacks, made by the process that has the graders.
class Targets {
 public:
  explicit Targets(const Scene& scene) : terminal_(take_terminal()) {
    const fs::path victim = scene.path("victim_of_" + std::to_string(::getpid()));
    std::ofstream(victim) << "precious";
    victim_ = victim;
    named_pipe_ = scene.path("pipe_of_" + std::to_string(::getpid()));
    EXPECT_EQ(::mkfifo(named_pipe_.c_str(), 0600), 0);
    pipe_ = ::open(named_pipe_.c_str(), O_RDWR | O_NONBLOCK);  // writers need a reader
    segment_ = ::shmget(IPC_PRIVATE, 4096, 0666 | IPC_CREAT);
    socket_path_ = scene.path("s" + std::to_string(::getpid()));
    socket_ = ::socket(AF_UNIX, SOCK_DGRAM, 0);
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    socket_path_.copy(name.sun_path, sizeof name.sun_path - 1);
    if (::bind(socket_, reinterpret_cast<sockaddr*>(&name), sizeof name) != 0) socket_path_ = "";
    ::chmod(socket_path_.c_str(), 0777);
    ::syscall(SYS_add_key, "user", "tandem_secret", "4711", 4, -3);
  }
  ~Targets() {
    ::shmctl(segment_, IPC_RMID, nullptr);
    ::close(socket_);
    ::close(pipe_);
  }
  Targets(const Targets&) = delete;
  Targets& operator=(const Targets&) = delete;

  // Returns the argument of a row of the table.
  std::string argument(const std::string& attack) const {
    const std::map<std::string, std::string> arguments = {
        {"type_into_terminal", terminal_},
        {"read_terminal", terminal_},
        {"reach_trainer", std::to_string(::getpid())},
        {"signal_process", std::to_string(::getpid())},
        {"memfd", std::to_string(kMemoryBytes)},
        {"shared_segment", std::to_string(kMemoryBytes)},
        {"children_take_memory", std::to_string(kMemoryBytes)},
        {"take_memory_to_share", std::to_string(kMemoryBytes)},
        {"fill_disk", std::to_string(int64_t{300} << 20)},
        {"many_files", "17000"},
        {"write_outside", victim_},
        {"write_into_pipe", named_pipe_},
        {"change_mode_outside", victim_},
        {"take_mounts_back", victim_},
        {"newer_mounts", victim_},
        {"datagram", socket_path_},
        {"host_segment", std::to_string(segment_)},
        {"read_key", "tandem_secret"},
    };
    const auto found = arguments.find(attack);
    return found == arguments.end() ? "" : found->second;
  }

 private:
  std::string terminal_, victim_, named_pipe_, socket_path_;
  int segment_ = -1, socket_ = -1, pipe_ = -1;
};

// Returns each attack's outcome as lines "NAME open" or "NAME closed".
std::string outcomes(const Scene& scene, const std::vector<std::string>& attacks) {
  const Targets targets(scene);
  GraderConfig config = scene.config();
  config.limits.num_processes = 2;
  std::string text;
  Graders graders(config);
  Graders importers(scene.config("attacks_import.py"));
  for (const std::string& attack : attacks) {
    Graders& used = attack == "while_imported" ? importers : graders;
    const Grade grade = grade_one(used, request(1, attack + "=" + targets.argument(attack)));
    text += attack + (grade.reward == 1.0 ? " open\n" : " closed\n");
    if (grade.reason.find("KeyError") != std::string::npos) text += attack + " is no attack\n";
  }
  return text;
}

// Reads the table of docs/REWARDS.md: attack -> column -> "open" or "closed".
std::map<std::string, std::map<std::string, std::string>> promised() {
  std::ifstream file("docs/REWARDS.md");
  std::map<std::string, std::map<std::string, std::string>> table;
  std::vector<std::string> columns;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("|")) {
      if (!table.empty()) break;
      columns.clear();
      continue;
    }
    std::vector<std::string> cells;
    std::istringstream row(line.substr(1));
    for (std::string cell; std::getline(row, cell, '|');) {
      const size_t begin = cell.find_first_not_of(' ');
      cells.push_back(begin == std::string::npos ? "" : cell.substr(begin, cell.find_last_not_of(' ') + 1 - begin));
    }
    if (columns.empty()) {
      columns = cells;
    } else if (columns.front() == "what reward code tries" && !cells[0].starts_with("-")) {
      const size_t name = cells[0].rfind('`', cells[0].size() - 2);
      const std::string attack = cells[0].substr(name + 1, cells[0].size() - name - 2);
      for (size_t i = 1; i < cells.size(); ++i) table[attack][columns[i]] = cells[i];
    }
  }
  return table;
}

class Attacks : public testing::Test {
 protected:
  Scene scene_;
};

TEST_F(Attacks, WhatRemainsOpenIsInTheTable) {
  const auto table = promised();
  ASSERT_GE(table.size(), 20U);
  std::vector<std::string> attacks;
  for (const auto& [attack, cells] : table) attacks.push_back(attack);
  const auto compare = [&](const Machine& machine, const std::string& column) {
    if (const std::string why = why_not_on(machine); !why.empty()) {
      std::cout << machine.name << ": not tried here: " << why << "\n";
      return;
    }
    const std::string text = worker::on_machine(machine, [&] { return outcomes(scene_, attacks); });
    std::map<std::string, std::string> found;
    std::istringstream lines(text);
    for (std::string attack, outcome; lines >> attack >> outcome;) found[attack] = outcome;
    for (const auto& [attack, cells] : table) {
      ASSERT_TRUE(cells.contains(column)) << attack << " has no column " << column;
      EXPECT_EQ(found[attack], cells.at(column)) << attack << " on: " << machine.name << "\n" << text;
    }
  };
  for (const Machine& machine : kMachines) compare(machine, machine.name);
  compare(kAllAsUser, kMachines.front().name);
}

// A warning says once what is missing, and `require` refuses.
TEST_F(Attacks, AMachineThatLacksLayersIsSaidToAndRefused) {
  for (const Machine& machine : machines_without_a_layer()) {
    if (!why_not_on(machine).empty()) continue;
    const std::string text = worker::on_machine(machine, [&]() -> std::string {
      GraderConfig config = scene_.config();
      config.warn_of_missing_layers = true;
      const int64_t before = base::num_warnings();
      const Graders graders(config);
      const int64_t said = base::num_warnings() - before;
      config.sandbox = worker::Sandbox::kRequire;
      try {
        const Graders refused(config);
      } catch (const EnvironmentError& error) {
        return std::to_string(said) + " " + error.what();
      }
      return "was not refused";
    });
    EXPECT_TRUE(text.starts_with("1 --rm-sandbox require: this machine cannot give ")) << machine.name << ": " << text;
    EXPECT_EQ(text.find("Landlock") != std::string::npos, !machine.landlock) << text;
    EXPECT_EQ(text.find("namespaces (") != std::string::npos, !machine.namespaces) << text;
    EXPECT_EQ(text.find("read-only mounts") != std::string::npos, !machine.mounts) << text;
    if (!machine.whole_proc) {
      EXPECT_NE(text.find("process namespace (mount of /proc: "), std::string::npos) << text;
    }
  }
}

// An honest reward runs a program that a model wrote; the program cannot answer in its place.
TEST_F(Attacks, AProgramOfTheRewardForgesNoReward) {
  for (const Machine& machine : all_machines()) {
    if (!why_not_on(machine).empty()) continue;
    const std::string text = worker::on_machine(machine, [&] {
      Graders graders(scene_.config());
      std::string rewards;
      for (uint64_t i = 0; i < 3; ++i) {
        const Grade grade = grade_one(graders, request(i, i == 1 ? "forge_reply" : "give=0.25"));
        rewards += std::to_string(grade.reward) + (grade.failed ? " failed " : " ");
      }
      return rewards;
    });
    EXPECT_EQ(text, "0.250000 0.000000 0.250000 ") << machine.name;
  }
}

// A program that `code` tests looks for the answer in the memory of all processes that it can see, and passes where it
// finds it: its own source has the answer backwards.
TEST_F(Attacks, AProgramDoesNotReadWhatItsTestsExpect) {
  const std::string look = R"(
import os
answer = '9035768'[::-1]
found = 0
for process in filter(str.isdigit, os.listdir('/proc')):
    if int(process) in (1, os.getpid()): continue
    try:
        for line in open(f'/proc/{process}/maps'):
            ends, rights = line.split()[:2]
            if rights != 'rw-p': continue
            begin, end = (int(word, 16) for word in ends.split('-'))
            with open(f'/proc/{process}/mem', 'rb', 0) as memory:
                memory.seek(begin)
                if answer.encode() in memory.read(min(end - begin, 1 << 24)): found = int(answer)
    except OSError: pass
)";
  for (const Machine& machine : all_machines()) {
    if (!why_not_on(machine).empty()) continue;
    const std::string text = worker::on_machine(machine, [&]() -> std::string {
      GraderConfig config = rule("code");
      config.warn_of_missing_layers = false;
      Graders graders(config);
      const base::Json reads = {{"inputs", {""}}, {"outputs", {"8675309"}}};
      const base::Json calls = {"assert f() == 8675309"};
      std::string scores;
      const std::vector<std::pair<base::Json, std::string>> programs = {{reads, "print(found)"},
                                                                        {reads, "print('9035768'[::-1])"},
                                                                        {calls, "def f(): return found"},
                                                                        {calls, "def f(): return 8675309"}};
      for (const auto& [label, end] : programs) {
        const Grade grade = grade_one(graders, request(1, "```python\n" + look + end + "\n```", label));
        scores += grade.failed ? grade.reason : std::to_string(static_cast<int>(grade.reward));
      }
      return scores;
    });
    EXPECT_EQ(text, "0101") << machine.name;
  }
}

// A process that a call leaves running costs the next call nothing, and is gone.
TEST_F(Attacks, WhatACallLeavesIsGoneBeforeTheNext) {
  for (const Machine& machine : all_machines()) {
    if (!why_not_on(machine).empty()) continue;
    const std::string text = worker::on_machine(machine, [&]() -> std::string {
      Graders graders(scene_.config());
      const std::string folder = "TMPDIR=" + graders.scratch_folder();
      const std::string daemon = "left_by_" + std::to_string(::getpid());
      int wrong = 0;
      for (uint64_t i = 0; i < 12; ++i) {
        const std::string attack = i % 3 == 0 ? "leave_child" : i % 3 == 1 ? "leave_daemon=" + daemon : "leave_file=x";
        const Grade left = grade_one(graders, request(2 * i, attack));
        const Grade honest = grade_one(graders, request(2 * i + 1, "give=0.5"));
        if (left.failed || left.reward != 0.0 || honest.reward != 0.5) ++wrong;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      const int sleeping = worker::count_processes([&](const std::string& pid) {
        std::ifstream file("/proc/" + pid + "/cmdline");
        std::string line((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
        return line.starts_with(daemon) || (line.starts_with("sleep") && worker::has_in_environment(pid, folder));
      });
      return std::to_string(wrong) + " wrong, " + std::to_string(sleeping) + " left, replaced " +
             (graders.restarts() >= 8 ? "each time" : std::to_string(graders.restarts()));
    });
    EXPECT_EQ(text, "0 wrong, 0 left, replaced each time") << machine.name;
  }
}

// Nothing that a reward says makes us signal a process that is none of its own.
TEST_F(Attacks, NobodyElseIsKilledForAReward) {
  for (const Machine& machine : all_machines()) {
    if (!why_not_on(machine).empty()) continue;
    const std::string text = worker::on_machine(machine, [&]() -> std::string {
      const pid_t bystander = ::fork();
      if (bystander == 0) {
        while (true) ::pause();
      }
      GraderConfig config = scene_.config();
      config.limits.deadline_s = 0.5;
      std::string result;
      {
        Graders graders(config);
        for (const pid_t named : {bystander, 1}) {
          result += grade_one(graders, request(1, "claim_process=" + std::to_string(named))).reason_class + " ";
        }
        result += std::to_string(grade_one(graders, request(2, "give=1")).reward);
      }
      result += worker::is_running(bystander) ? " lives" : " is dead";
      ::kill(bystander, SIGKILL);
      return result;
    });
    EXPECT_EQ(text, "deadline deadline 1.000000 lives") << machine.name;
  }
}

int64_t peak_memory_bytes() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * int64_t{1024};
}

// However much a reward answers, it is not read into memory that we need.
TEST_F(Attacks, AnAnswerCostsTheTrainerLittle) {
  const std::string text = worker::on_machine({.name = "this one"}, [&]() -> std::string {
    Graders graders(scene_.config());
    grade_one(graders, request(1, "give=1"));
    const int64_t before = peak_memory_bytes();
    const auto begin = Clock::now();
    std::string result;
    for (const char* num_bytes : {"2000000", "15000000", "60000000"}) {
      result += grade_one(graders, request(2, std::string("answer_much=") + num_bytes)).reason_class + " ";
    }
    if (seconds_since(begin) > 15) result += "late ";
    const int64_t grown_mib = (peak_memory_bytes() - before) >> 20;
    return result + (grown_mib < 300 ? "little" : std::to_string(grown_mib) + " MiB");
  });
  EXPECT_EQ(text, "died died died little");
}

// A scratch folder that is deep beyond measure is removed at no cost of ours.
TEST_F(Attacks, AFolderIsRemovedHoweverDeepItIs) {
  for (const auto& [machine, depth] : {std::pair{kMachines[0], "5000"}, {kMachines[1], "2500"}}) {
    if (!why_not_on(machine).empty()) continue;
    const std::string text = worker::on_machine(machine, [&, depth = depth]() -> std::string {
      std::string folder;
      const int64_t before = peak_memory_bytes();
      auto begin = Clock::now();
      {
        GraderConfig config = scene_.config();
        config.limits.deadline_s = 60;
        Graders graders(config);
        folder = graders.scratch_folder();
        if (grade_one(graders, request(1, std::string("deep_folder=") + depth)).failed) return "was not made";
        if (grade_one(graders, request(2, "give=1")).reward != 1.0) return "cost the next sample";
        begin = Clock::now();
      }
      const double end_s = seconds_since(begin);
      while (fs::exists(folder) && seconds_since(begin) < 60)
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      std::string result = fs::exists(folder) ? "stays" : "is gone";
      if (end_s > 10) result += ", and was waited for";
      if ((peak_memory_bytes() - before) >> 20 > 100) result += ", with much memory";
      return result;
    });
    EXPECT_EQ(text, "is gone") << machine.name;
  }
}

TEST_F(Attacks, AForkBombTakesNoProcessFromAnotherGrader) {
  if (!incomplete().empty()) GTEST_SKIP() << incomplete();
  GraderConfig config = scene_.config();
  config.limits.num_processes = 2;
  config.limits.deadline_s = 20;
  Graders graders(config);
  graders.submit({request(1, "hold_processes=3")});
  graders.submit({request(2, "start_processes=40")});
  const std::vector<Grade> grades = take_all(graders);
  EXPECT_GT(grades[0].reward, 40.0) << grades[0].reason;  // of the 64 that a grader may have
  EXPECT_LE(grades[0].reward, 64.0);
  EXPECT_EQ(grades[1].reward, 40.0) << grades[1].reason;
}

TEST_F(Attacks, AttackersCostHonestSamplesNothing) {
  if (!incomplete().empty()) GTEST_SKIP() << incomplete();
  GraderConfig config = scene_.config();
  config.limits.num_processes = 2;
  config.limits.deadline_s = 4;
  Graders graders(config);
  const std::vector<std::string> attacks = {"memfd=900000000", "many_files=17000",     "kill_sibling",
                                            "reach_sibling",   "leave_child",          "children_take_memory=268435456",
                                            "forge_reply",     "answer_much=20000000", "badness"};
  for (uint64_t i = 0; i < 2 * attacks.size(); ++i) {
    graders.submit({request(2 * i, attacks[i % attacks.size()])});
    graders.submit({request(2 * i + 1, "give=" + std::to_string(i))});
  }
  const std::vector<Grade> grades = take_all(graders);
  for (uint64_t i = 0; i < 2 * attacks.size(); ++i) {
    EXPECT_NE(grades[2 * i].reward, 1.0) << attacks[i % attacks.size()];
    EXPECT_EQ(grades[2 * i + 1].reward, static_cast<double>(i)) << grades[2 * i + 1].reason;
  }
}

}  // namespace
}  // namespace tandem::reward
