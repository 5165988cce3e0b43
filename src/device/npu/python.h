// An interpreter of Python within this process, for libraries that are started by an import. It starts once and stays
// for the life of the process. No torch.
#pragma once

#include <map>
#include <string>

namespace tandem::device {

struct PythonPlace {
  std::string executable;  // a path; of a virtual environment too: its packages are found
  std::string library;     // libpython of that interpreter, a path
};

// Starts Python where it does not run yet, and runs a script in a namespace of its own, which stays. `strings` are the
// script's variables at its start. Returns those of its variables that are texts at its end. The interpreter handles no
// signals and reads neither the user's packages nor PYTHON* variables. Throws EnvironmentError, one line, where Python
// does not start, or with the exception that the script raised first.
std::map<std::string, std::string> run_python(const PythonPlace& place, const std::string& script,
                                              const std::map<std::string, std::string>& strings);

}  // namespace tandem::device
