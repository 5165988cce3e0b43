// The kernel's facts about this process: its children and its open descriptors.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace tandem::worker {

struct ProcessState {
  char state = '?';  // 'Z': a zombie
  int64_t parent = 0, group = 0, session = 0;
};

inline ProcessState process_state(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string text;
  std::getline(file, text, '\0');  // all of it; nothing where the process ends meanwhile
  ProcessState result;
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return result;
  std::istringstream(text.substr(name_end + 1)) >> result.state >> result.parent >> result.group >> result.session;
  return result;
}

// Returns how many processes of the machine `holds` is true for, called with their number as text.
template <typename Holds>
int count_processes(Holds holds) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") == std::string::npos && holds(name)) ++count;
  }
  return count;
}

// Counts our children, living or not yet reaped.
inline int num_children() {
  return count_processes([](const std::string& pid) { return process_state(pid).parent == ::getpid(); });
}

// Returns whether the process was started with `text` in its environment.
inline bool has_in_environment(const std::string& pid, const std::string& text) {
  std::string environment(1 << 16, '\0');
  std::FILE* file = std::fopen(("/proc/" + pid + "/environ").c_str(), "r");
  if (file == nullptr) return false;
  environment.resize(std::fread(environment.data(), 1, environment.size(), file));
  std::fclose(file);
  return environment.find(text) != std::string::npos;
}

// Counts processes, wherever they went, that were started with `text` in their environment.
inline int num_processes_with(const std::string& text) {
  return count_processes([&](const std::string& pid) { return has_in_environment(pid, text); });
}

// Counts dead processes that we or such a process has not reaped. Others of the session are none of ours.
inline int num_zombies(const std::string& text) {
  return count_processes([&](const std::string& pid) {
    const ProcessState state = process_state(pid);
    return state.state == 'Z' && (state.parent == ::getpid() || has_in_environment(std::to_string(state.parent), text));
  });
}

inline bool is_running(int64_t pid) {
  const char state = process_state(std::to_string(pid)).state;
  return state != '?' && state != 'Z';
}

// Waits until our child has ended, all its threads too; leaves it to be reaped by its owner.
inline void wait_for_exit(int64_t pid) {
  siginfo_t info = {};
  while (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
}

// Waits until no process has that number, whoever reaps it.
inline void wait_until_gone(int64_t pid) {
  while (process_state(std::to_string(pid)).state != '?') ::usleep(2000);
}

inline int num_descriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

}  // namespace tandem::worker
