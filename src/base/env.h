// Reads the environment, which no other file does, and redacts the parts of it that must not get into files.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::base {

// Returns HOME without a '/' at its end; "" if it is unset, relative or the root.
std::string home_directory();

// Returns the folder for what can be made again: XDG_CACHE_HOME, or ~/.cache; that of temporary files without a home.
std::string cache_directory();

// Returns the folder for temporary files: TMPDIR, or /tmp where that names no folder.
std::string temporary_directory();

// Returns the interpreter that a launcher names for the worker processes (TANDEM_WORKER_PYTHON): an installed wheel's
// `tandem` command names the one that it was installed for. Returns "" without a launcher.
std::string launcher_python();

// Returns TANDEM_RM_TOKEN, the credential that a reward service is shown; "" if it is unset.
std::string reward_service_token();

// Returns TANDEM_SECRET_FILE, the file by which ranks on several machines authenticate each other; "" if it is unset.
std::string secret_file();

// Returns whether a variable is set, to whatever value.
bool is_set(const std::string& name);
// Returns a variable's value; "" if it is unset.
std::string value_of(const std::string& name);

// Returns whether TANDEM_RANKS_SHARE_DEVICES is set: ranks may then be on the same device. It is for tests on a machine
// with one device.
bool ranks_share_devices();

// Returns the variables by which launchers tell a rank who it is (RANK, SLURM_*, ...), by name. An empty variable
// counts as unset.
std::map<std::string, std::string> launch_environment();

// Removes from a text what a run's files must not hold: the home directory becomes "~", and the value of a secret
// variable (its name ends in TOKEN, KEY, SECRET, PASSWORD or PASSWD, and the value has 8 characters or more) becomes
// "[NAME]".
class Redaction {
 public:
  // Uses the environment of this process.
  Redaction();
  // `secrets` holds pairs of name and value.
  Redaction(std::string home, std::vector<std::pair<std::string, std::string>> secrets);

  std::string apply(std::string_view text) const;
  std::string hide_secrets(std::string_view text) const;

 private:
  std::string home_;
  std::vector<std::pair<std::string, std::string>> secrets_;
};

// shorten_home() replaces `home` at the start of a path by "~", expand_home() does the opposite. Other texts stay as
// they are; so do all where `home` is "".
std::string shorten_home(const std::string& path, const std::string& home);
std::string expand_home(const std::string& path, const std::string& home);

}  // namespace tandem::base
