// Chooses the environment variables that a worker process starts with.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "worker/worker_config.h"

namespace tandem::worker {

// Every worker sees these variables of our environment, a sandboxed one too. A '*' in the last two stands for any text.
inline constexpr std::array<std::string_view, 14> kKeptVariables = {
    "PATH",        "HOME",       "USER",       "LOGNAME",         "LANG", "LANGUAGE",     "TZ", "TERMINFO",
    "VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LC_*", "*_NUM_THREADS"};

// Returns entries "NAME=value". A sandboxed worker gets kKeptVariables, which a Python program needs to run, and those
// that config.variables adds, so that no secret of the run (HF_TOKEN, AWS_*, *_API_KEY, ...) reaches it. A worker
// outside the sandbox gets all variables, or these two kinds where config.variables is set. Both get what makes a
// worker the same everywhere: our package first on the import path, no module of the working directory, UTF-8,
// unbuffered output, one order of sets, no files written beside the sources. Temporary files go to the first writable
// directory. The user's PYTHONPATH and PYTHONHOME reach only his own code (`runs_users_code`): our workers need no
// module of his, and one that is called json.py would end them.
std::vector<std::string> child_environment(const WorkerConfig& config, bool runs_users_code);

}  // namespace tandem::worker
