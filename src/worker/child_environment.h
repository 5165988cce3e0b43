// The environment variables that a worker process starts with.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "worker/worker_config.h"

namespace tandem::worker {

// What of our environment any worker sees, a sandboxed one too; the two patterns stand for all that begin or end so.
inline constexpr std::array<std::string_view, 14> kKeptVariables = {
    "PATH",        "HOME",       "USER",       "LOGNAME",         "LANG", "LANGUAGE",     "TZ", "TERMINFO",
    "VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LC_*", "*_NUM_THREADS"};

// "NAME=value" each. A sandboxed worker gets those of ours that a Python program needs to run, by name, so that no
// secret of the run (HF_TOKEN, AWS_*, *_API_KEY, ...) reaches it, and those that config.variables adds; another gets
// all, or these two kinds. Both get what makes a worker the same everywhere: our package first on the import path, no
// module of the working directory, UTF-8, unbuffered output, one order of sets, no files written beside the sources.
// Temporary files go to the first writable directory.
// PYTHONPATH and PYTHONHOME of the user reach only his own code (`runs_users_code`): our workers need no module of his,
// and one that is called json.py would end them.
std::vector<std::string> child_environment(const WorkerConfig& config, bool runs_users_code);

}  // namespace tandem::worker
