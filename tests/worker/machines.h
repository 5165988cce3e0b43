// Machines that give less than all layers of the sandbox. They are made of this one: a child of the test, with all that
// it starts, loses system calls and capabilities.
#pragma once

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tandem::worker {

struct Machine {
  const char* name;
  bool namespaces = true;
  bool landlock = true;
  bool mounts = true;      // in namespaces of one's own; some distributions refuse them by AppArmor
  bool as_root = true;     // else as a user without any name
  bool whole_proc = true;  // else a part of /proc is covered, as containers cover some: no other /proc may be mounted
  bool container = false;  // with the capabilities that Docker leaves to root, and none of what its profile refuses
};

constexpr uid_t kSomeUser = 12345;

namespace machine_detail {

// The calls that Docker's default profile (moby/profiles, seccomp/default.json) refuses, without the capabilities that
// would allow more.
inline std::vector<int> calls_of_namespaces(bool container) {
  std::vector<int> calls = {SYS_unshare, SYS_setns, SYS_mount, SYS_umount2, SYS_pivot_root};
  if (container) {
    calls.insert(calls.end(), {SYS_add_key,
                               SYS_request_key,
                               SYS_keyctl,
                               SYS_bpf,
                               SYS_perf_event_open,
                               SYS_userfaultfd,
                               SYS_open_by_handle_at,
                               SYS_syslog,
                               SYS_quotactl,
                               SYS_acct,
                               SYS_move_pages,
                               SYS_io_uring_setup,
                               SYS_io_uring_enter,
                               SYS_io_uring_register,
                               SYS_open_tree,
                               SYS_move_mount,
                               SYS_fsopen,
                               SYS_fsconfig,
                               SYS_fsmount,
                               SYS_fspick,
                               SYS_mount_setattr});
  }
  return calls;
}

inline void refuse_calls(const Machine& machine) {
  const auto errno_of = [](int number) { return SECCOMP_RET_ERRNO | static_cast<uint32_t>(number); };
  std::vector<sock_filter> lines;
  const auto add = [&](uint16_t code, uint8_t yes, uint8_t no, uint32_t value) {
    lines.push_back({code, yes, no, value});
  };
  const auto deny = [&](int call, int error) {
    add(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, static_cast<uint32_t>(call));
    add(BPF_RET | BPF_K, 0, 0, errno_of(error));
  };
  add(BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr));
  if (!machine.namespaces) {
    for (const int call : calls_of_namespaces(machine.container)) deny(call, EPERM);
    deny(SYS_clone3, ENOSYS);
    constexpr uint32_t kNamespaces = 0x7E020000;
    add(BPF_JMP | BPF_JEQ | BPF_K, 0, 4, SYS_clone);
    add(BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, args));
    add(BPF_JMP | BPF_JSET | BPF_K, 0, 1, kNamespaces);
    add(BPF_RET | BPF_K, 0, 0, errno_of(EPERM));
    add(BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr));
  }
  if (!machine.mounts) {
    for (const int call : {SYS_mount, SYS_mount_setattr}) deny(call, EPERM);
  }
  if (!machine.landlock) {
    for (const int call : {SYS_landlock_create_ruleset, SYS_landlock_add_rule, SYS_landlock_restrict_self}) {
      deny(call, ENOSYS);
    }
  }
  add(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW);
  const sock_fprog program = {static_cast<uint16_t>(lines.size()), lines.data()};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) _exit(99);
}

inline void keep_capabilities_of_a_container() {
  constexpr std::array kKept = {0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31};
  uint32_t mask = 0;
  for (const int capability : kKept) mask |= uint32_t{1} << capability;
  for (int capability = 0; capability <= 40; ++capability) {
    if (capability > 31 || (mask >> capability & 1) == 0) prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);
  }
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> sets = {};
  sets[0] = {mask, mask, 0};
  if (syscall(SYS_capset, &header, sets.data()) != 0) _exit(98);
}

inline void cover_a_part_of_proc() {
  const bool is_done = unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                       mount("/dev/null", "/proc/version", nullptr, MS_BIND, nullptr) == 0;
  if (!is_done) _exit(96);
}

inline void enter(const Machine& machine) {
  if (!machine.whole_proc) cover_a_part_of_proc();
  if (machine.container && geteuid() == 0) keep_capabilities_of_a_container();
  if (!machine.as_root && geteuid() == 0 && (setgid(kSomeUser) != 0 || setuid(kSomeUser) != 0)) _exit(97);
  prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);  // as a process is that was started by that user
  if (!machine.namespaces || !machine.landlock || !machine.mounts) refuse_calls(machine);
}

}  // namespace machine_detail

// Returns what `f` returns when it runs on such a machine, in a child of this process that leads a session of its own;
// throws what it throws, too. The caller may hold no thread.
inline std::string on_machine(const Machine& machine, const std::function<std::string()>& f) {
  std::array<int, 2> pipe_ends = {};
  if (pipe(pipe_ends.data()) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    close(pipe_ends[0]);
    setsid();
    machine_detail::enter(machine);
    std::string text;
    try {
      text = f();
    } catch (const std::exception& error) {
      text = std::string("threw: ") + error.what();
    }
    for (size_t sent = 0; sent < text.size();) {
      const ssize_t n = write(pipe_ends[1], text.data() + sent, text.size() - sent);
      if (n <= 0) break;
      sent += static_cast<size_t>(n);
    }
    _exit(0);
  }
  close(pipe_ends[1]);
  std::string text;
  std::array<char, 4096> buffer;
  for (ssize_t n = 0; (n = read(pipe_ends[0], buffer.data(), buffer.size())) != 0;) {
    if (n < 0 && errno != EINTR) break;
    if (n > 0) text.append(buffer.data(), static_cast<size_t>(n));
  }
  close(pipe_ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) text += "\nkilled by signal " + std::to_string(WTERMSIG(status));
  if (WIFEXITED(status) && WEXITSTATUS(status) != 0) text += "\nexit code " + std::to_string(WEXITSTATUS(status));
  return text;
}

}  // namespace tandem::worker
