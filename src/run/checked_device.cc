#include "run/checked_device.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/files.h"
#include "base/log.h"
#include "device/kept_check.h"
#include "device/registry.h"
#include "mesh/network.h"
#include "worker/spawn.h"

namespace tandem::run {

namespace {

// Runs the check in a process of its own, which keeps the answers; what it prints goes to our standard error.
void run_check(const std::string& device) {
  base::log_info("--device {}: no answers of this stack are kept; `tandem device --check` runs, about a minute",
                 device);
  const pid_t process = worker::spawn_tandem({"device", "--check", "--device", device}, STDERR_FILENO);
  while (waitpid(process, nullptr, 0) < 0 && errno == EINTR) {
  }
}

// Processes of one user check one after the other, so that the others find the answers of the first.
device::KeptCheck kept_or_new(const device::DeviceSpec& spec, const std::string& device) {
  const device::Stack stack = device::stack(spec);
  const std::string lock_file = device::kept_check_path(stack) + ".lock";
  base::make_directories(std::filesystem::path(lock_file).parent_path());
  const mesh::OwnedDescriptor lock(open(lock_file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  TANDEM_ENV_CHECK(lock.get() >= 0 && flock(lock.get(), LOCK_EX) == 0,
                   fmt::format("{}: cannot be locked; set XDG_CACHE_HOME to a folder that can be written", lock_file));
  std::optional<device::KeptCheck> kept = device::read_kept_check(stack);
  if (!kept) {
    run_check(device);
    kept = device::read_kept_check(stack);
  }
  TANDEM_ENV_CHECK(kept, fmt::format("--device {0}: its check did not come to its end; run `tandem device --device {0} "
                                     "--check`, and see what it says",
                                     device));
  return *kept;
}

}  // namespace

config::TrainConfig on_checked_device(config::TrainConfig config) {
  const std::string& device = config.model.device;
  const device::DeviceSpec spec = device::parse_device(device);
  if (device::rungs_of(spec).empty()) return config;
  const device::KeptCheck kept = kept_or_new(spec, device);
  const std::string command = fmt::format("`tandem device --device {} --check`", device);
  TANDEM_ENV_CHECK(kept.is_right,
                   fmt::format("--device {}: {} said no to \"{}\"; send us its report, and give --device "
                               "cpu",
                               device, command, kept.first_no));
  if (kept.is_exact) return config;
  TANDEM_ENV_CHECK(config.allow_inexact,
                   fmt::format("--device {}: {} said no to \"{}\": a row's bits depend on its batch, so samples would "
                               "not be of the policy that is trained; give --allow-inexact to correct for it, or "
                               "--device cpu",
                               device, command, kept.first_no));
  base::log_warning(
      "--allow-inexact: {} said no to \"{}\"; the trainer scores old log-probs, --use-tis is on, and "
      "every record says train/inexact_device",
      command, kept.first_no);
  config.is_inexact_device = true;
  config.loss.loss.old_logprobs = "proximal";
  config.loss.loss.use_tis = true;
  return config;
}

}  // namespace tandem::run
