#include "device/cpu/gloo_group.h"

// LibTorch's header of Gloo needs this macro.
#define USE_C10D_GLOO 1

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <csignal>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

namespace tandem::device {
namespace {

using std::chrono::milliseconds;

// c10d appends the place where an error was thrown; the first line is the error itself.
std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

// Gloo writes to connections that the other side may have closed, which would end the process.
void ignore_broken_pipes() {
  struct sigaction now {};
  sigaction(SIGPIPE, nullptr, &now);
  if (now.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace

// All ranks are waited for before Gloo connects: so the missing ones can be named, and Gloo connects in milliseconds.
c10::intrusive_ptr<c10d::Backend> connect_gloo(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name,
                                               const GlooSettings& settings) {
  ignore_broken_pipes();
  const milliseconds timeout(static_cast<int64_t>(settings.timeout_s * 1000));
  const auto ours = c10::make_intrusive<c10d::PrefixStore>(name, store);
  std::vector<std::string> keys;
  for (int rank = 0; rank < settings.size; ++rank) keys.push_back(fmt::format("joined/{}", rank));
  const auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->threads = 1;  // threads for collectives, which we do not use
  try {
    options->devices.push_back(settings.interface.empty()
                                   ? c10d::ProcessGroupGloo::createDeviceForHostname(settings.address)
                                   : c10d::ProcessGroupGloo::createDeviceForInterface(settings.interface));
  } catch (const std::exception& error) {
    throw EnvironmentError(
        fmt::format("{}: cannot listen on {}: {}; give an address or a network interface of this host", name,
                    settings.interface.empty() ? settings.address : settings.interface, first_line(error)));
  }
  try {
    ours->set(keys[static_cast<size_t>(settings.rank)], std::vector<uint8_t>{1});
    ours->wait(keys, timeout);
  } catch (const std::exception&) {
    std::vector<int> missing;
    try {
      for (int rank = 0; rank < settings.size; ++rank) {
        if (!ours->check({keys[static_cast<size_t>(rank)]})) missing.push_back(rank);
      }
    } catch (const std::exception&) {  // the error is raised below
    }
    if (missing.empty()) throw PeerLost(fmt::format("{}: joining: the store of rank 0 does not answer", name));
    throw PeerLost(fmt::format("{}: joining: rank {} did not come within {} s", name, fmt::join(missing, ", rank "),
                               settings.timeout_s));
  }
  try {
    return c10::make_intrusive<c10d::ProcessGroupGloo>(ours, settings.rank, settings.size, options);
  } catch (const std::exception& error) {
    throw PeerLost(fmt::format("{}: connecting {} ranks: {}", name, settings.size, first_line(error)));
  }
}

}  // namespace tandem::device
