// Starts the program. It prepares the process; cli/verbs.cc has what the program does.
#include <fcntl.h>
#include <malloc.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "session/stop_signal.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

namespace {

// Opens /dev/null as each standard descriptor that is closed. A file of ours would get its number otherwise, even the
// memory that tensors lie in, and what is printed would be written there.
void open_standard_descriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
      _exit(tandem::cli::kExitEnvironment);  // nobody hears why
  }
}

// Ends the process without the destructors of static objects. Ours have nothing to do; LibTorch's take back each
// operator that it has registered, which is a third of the time that a short command takes.
[[noreturn]] void end_now(int code) {
  std::fflush(nullptr);
#ifdef __SANITIZE_ADDRESS__
  __lsan_do_leak_check();
#endif
  _exit(code);
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_descriptors();
  // A step frees and asks again for the same temporaries of some MiB. By default glibc gives such blocks back to the
  // kernel at once, and every step pays for faulting their pages in anew; kept in the heap they stay mapped. 32 MiB is
  // the largest threshold that glibc accepts.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  // The kernel names a process after its file, and a rank is started from /proc/self/exe: ps would call it "exe".
  prctl(PR_SET_NAME, "tandem");
  tandem::session::install_stop_signals();
  end_now(tandem::cli::run_command_line({argv + 1, argv + argc}));
}
