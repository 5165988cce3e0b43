// Starts a program with the descriptors that it is given and no others.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace tandem::worker {

// Starts a Python interpreter, arguments[0]. child_fds become descriptors 0, 1, ... of the child. The child leads a
// session of its own, so it has no terminal to type into, and catches no signal that we catch. EnvironmentError when it
// cannot be started; UserError when `python_flag`, if not empty, named the interpreter.
pid_t spawn(const std::vector<int>& child_fds, std::vector<std::string> arguments, std::vector<std::string> environment,
            const std::string& python_flag);

// Starts the program that this one is with other arguments, `words` without its name, and the whole environment. It
// reads nothing and writes to descriptor `output`, its errors too. EnvironmentError when it cannot be started.
pid_t spawn_tandem(std::vector<std::string> words, int output);

// Returns "was killed by signal 9", "exited with code 3", ... for a `status` of waitpid().
std::string describe_exit(int status);

}  // namespace tandem::worker
