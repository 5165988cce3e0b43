#include "mesh/announcement.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/check.h"
#include "base/clock.h"
#include "mesh/sealed_store.h"
#include "mesh/store.h"

namespace tandem::mesh {

namespace {

constexpr std::chrono::milliseconds kBetweenLooks{50};

std::string rank_0_of(const LaunchVariables& launch) {
  return fmt::format("{}: rank 0 at {}:{}", launch.name(), launch.master_address, launch.master_port);
}

// Opens the launch's store in a process that does not serve it.
c10::intrusive_ptr<c10d::Store> open_announcements(const LaunchVariables& launch,
                                                   const AnnouncementSettings& settings) {
  c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::PrefixStore>(
      fmt::format("tandem/{}/announcements", launch.attempt), open_store(launch, settings.timeout_s));
  if (settings.secret.empty()) return store;
  return c10::make_intrusive<SealedStore>(std::move(store), settings.secret, "announcements");
}

}  // namespace

void announce(LaunchVariables launch, const AnnouncementSettings& settings, const std::string& name,
              const std::string& text) {
  launch.store_is_anothers = true;  // this process has it already
  try {
    open_announcements(launch, settings)->set(name, text);
  } catch (const c10::Error&) {  // its text is about sockets
    throw EnvironmentError(rank_0_of(launch) + " is gone; look at what it said");
  }
}

std::string wait_for_announcement(const LaunchVariables& launch, const AnnouncementSettings& settings,
                                  const std::string& name) {
  const base::Clock::time_point begin = base::Clock::now();
  try {
    const auto store = open_announcements(launch, settings);
    while (!store->check({name})) {
      TANDEM_ENV_CHECK(base::seconds_since(begin) < settings.timeout_s,
                       fmt::format("{} has not said within {:g} s (--distributed-timeout-minutes) where processes that "
                                   "only sample find it; look at what it says",
                                   rank_0_of(launch), settings.timeout_s));
      std::this_thread::sleep_for(kBetweenLooks);
    }
    const std::string text = store->get_to_str(name);
    TANDEM_USER_CHECK(
        !settings.secret.empty() || !looks_sealed(text),
        fmt::format("rank 0 was started with TANDEM_SECRET_FILE, rank {} without; set it for all ranks", launch.rank));
    return text;
  } catch (const ForeignValue& error) {  // nothing of rank 0 was read before: it has another secret
    throw UserError(error.what());
  } catch (const c10::Error&) {
    throw EnvironmentError(rank_0_of(launch) + " is gone; look at what it said");
  }
}

}  // namespace tandem::mesh
