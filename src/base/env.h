// The environment, read here and nowhere else, and what of it must not get into files.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::base {

// HOME without a '/' at its end; "" where it is unset, relative or the root.
std::string home_directory();

// The interpreter that a launcher names for the worker processes (TANDEM_WORKER_PYTHON): an installed wheel's `tandem`
// command names the one that it was installed for. "" where there is no launcher.
std::string launcher_python();

// TANDEM_RM_TOKEN, which a service of rewards is shown; "" where it is unset.
std::string reward_service_token();

// TANDEM_SECRET_FILE, the file by which the ranks of several machines know each other; "" where it is unset.
std::string secret_file();

// Whether a variable is set, to whatever value.
bool is_set(const std::string& name);

// TANDEM_RANKS_SHARE_DEVICES, for tests on a machine with one device: ranks may then be on the same one.
bool ranks_share_devices();

// The variables by which launchers tell a rank who it is (RANK, SLURM_*, ...), by name; those that are empty are not
// set.
std::map<std::string, std::string> launch_environment();

// Takes out of a text what a run's files are not to hold: the home directory becomes "~", and the value of a secret
// variable (its name ends in TOKEN, KEY, SECRET, PASSWORD or PASSWD, the value has 8 characters or more) becomes
// "[NAME]".
class Redaction {
 public:
  // Of this process's environment.
  Redaction();
  // `secrets`: name and value.
  Redaction(std::string home, std::vector<std::pair<std::string, std::string>> secrets);

  std::string apply(std::string_view text) const;
  std::string hide_secrets(std::string_view text) const;

 private:
  std::string home_;
  std::vector<std::pair<std::string, std::string>> secrets_;
};

// `home` at the start of a path becomes "~", and the other way round. Other texts stay; so do all where home is "".
std::string shorten_home(const std::string& path, const std::string& home);
std::string expand_home(const std::string& path, const std::string& home);

}  // namespace tandem::base
