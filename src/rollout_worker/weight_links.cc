#include "rollout_worker/weight_links.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/clock.h"
#include "base/host_port.h"
#include "base/log.h"
#include "mesh/channel_connector.h"
#include "mesh/local_socket.h"
#include "mesh/network.h"
#include "mesh/secret.h"

namespace tandem::rollout_worker {

namespace {

constexpr int64_t kWaitingBytes = int64_t{64} << 20;
constexpr double kConnects = 10.0;  // seconds in which the worker before connects

std::string address_at(const std::string& address, int port) {
  return address.empty() ? "" : fmt::format("{}:{}", address, port);
}

std::unique_ptr<mesh::Channel> connect(const sampling::WeightDoor& door, const std::string& secret, double patience_s) {
  if (!door.name.empty()) {
    std::optional<mesh::OwnedDescriptor> socket = mesh::connect_locally(door.name);
    return socket ? std::make_unique<mesh::Channel>(std::move(*socket), patience_s) : nullptr;
  }
  const std::optional<base::HostPort> there = base::host_port(door.address);
  return there ? mesh::connect_channel(there->host, there->port, secret, patience_s) : nullptr;
}

// Returns whether the one who has connected is of this chain. One of an earlier chain may have closed already.
bool is_of_chain(mesh::Channel& previous, uint64_t chain, double wait_s) {
  try {
    return previous.receive(wait_s) == std::to_string(chain);
  } catch (const mesh::ChannelClosed&) {
    return false;
  }
}

}  // namespace

WeightLinks::WeightLinks(const mesh::Channel& run, Settings settings)
    : settings_(std::move(settings)),
      name_("weights-" + mesh::random_digits()),
      address_(mesh::network_address_of(run.descriptor())),
      listener_(name_, {.address = address_, .port = 0, .secret = settings_.secret}, settings_.patience_s) {}

WeightLinks::~WeightLinks() { end_thread(); }

void WeightLinks::end_thread() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  end_.ring();
  {
    const std::scoped_lock lock(mutex_);
    if (reads_from_ >= 0) shutdown(reads_from_, SHUT_RDWR);
  }
  thread_.join();
  end_.silence();
}

sampling::WeightDoor WeightLinks::door() const {
  return {.place = mesh::local_place(), .name = name_, .address = address_at(address_, listener_.port())};
}

void WeightLinks::connect_to_run(std::unique_ptr<mesh::Channel> line) {
  line_ = std::move(line);
  line_->send(to_bytes(sampling::WeightLine{.name = name_}));
}

void WeightLinks::take_place(const sampling::Chain& chain) {
  end_thread();
  next_ = nullptr;
  {
    const std::scoped_lock lock(mutex_);
    arrivals_.clear();
    waiting_bytes_ = 0;
  }
  thread_ = std::jthread([this, chain](const std::stop_token& end) { receive(end, chain); });
}

void WeightLinks::let_wait(bool waits) {
  const std::scoped_lock lock(mutex_);
  lets_wait_ = waits;
  changed_.notify_all();
}

std::optional<WeightLinks::Arrival> WeightLinks::next() {
  const std::scoped_lock lock(mutex_);
  news_.silence();
  if (arrivals_.empty()) return std::nullopt;
  Arrival arrival = std::move(arrivals_.front());
  arrivals_.pop_front();
  if (arrival.bytes) waiting_bytes_ -= std::ssize(*arrival.bytes);
  if (!arrivals_.empty()) news_.ring();
  changed_.notify_all();
  return arrival;
}

void WeightLinks::add(const std::stop_token& end, Arrival arrival) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, end, [this] { return waiting_bytes_ <= (lets_wait_ ? settings_.whole_bytes : kWaitingBytes); });
  if (end.stop_requested()) return;
  if (arrival.bytes) waiting_bytes_ += std::ssize(*arrival.bytes);
  arrivals_.push_back(std::move(arrival));
  news_.ring();
}

void WeightLinks::receive(const std::stop_token& end, const sampling::Chain& chain) {
  try {
    // The worker before is answered first: it must not wait because the one after is frozen.
    const std::unique_ptr<mesh::Channel> previous = chain.is_first ? nullptr : wait_for_previous(end, chain.number);
    next_ = connect_to_next(chain);
    TANDEM_ENV_CHECK(previous || line_, "the run has no connection for weights to this process");
    receive_from(end, previous ? *previous : *line_, chain.is_first);
  } catch (const EnvironmentError& error) {
    next_ = nullptr;  // the worker after learns at once that no more will come
    if (end.stop_requested()) return;
    base::log_warning("new weights have not all come: {}", error.what());
    add(end, {});
  }
}

void WeightLinks::receive_from(const std::stop_token& end, mesh::Channel& previous, bool is_run) {
  while (const std::optional<sampling::Message> message = next_message(end, previous, is_run)) {
    if (std::holds_alternative<sampling::Alive>(*message)) continue;
    const auto* const piece = std::get_if<sampling::Weights>(&*message);
    TANDEM_ENV_CHECK(piece != nullptr, "the process before says something else than weights");
    std::shared_ptr<const std::vector<std::byte>> bytes = read(*piece, previous);
    if (next_) next_->pass(to_bytes(*piece), bytes);
    add(end, {.piece = *piece, .bytes = std::move(bytes)});
    const bool is_last = piece->is_last && piece->part + 1 == settings_.num_parts && !piece->is_base;
    if (is_last) break;
  }
}

// The run may give other chains their weights first, and is known to live by its beats.
std::optional<sampling::Message> WeightLinks::next_message(const std::stop_token& end, mesh::Channel& previous,
                                                           bool is_run) {
  const std::array<int, 1> news = {end_.descriptor()};
  const base::Clock::time_point begin = base::Clock::now();
  while (!end.stop_requested()) {
    if (const std::optional<std::string> frame = previous.receive(settings_.patience_s, news))
      return sampling::message_of(*frame);
    if (!is_run && base::seconds_since(begin) >= settings_.patience_s)
      throw mesh::ChannelClosed(fmt::format("nothing has come for {:g} s", settings_.patience_s));
  }
  return std::nullopt;
}

std::shared_ptr<const std::vector<std::byte>> WeightLinks::read(const sampling::Weights& piece, mesh::Channel& from) {
  TANDEM_ENV_CHECK(piece.num_bytes > 0 && piece.num_bytes <= settings_.whole_bytes,
                   fmt::format("a piece of weights has {} bytes", piece.num_bytes));
  auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(piece.num_bytes));
  const auto set_reads_from = [this](int descriptor) {
    const std::scoped_lock lock(mutex_);
    reads_from_ = descriptor;
  };
  set_reads_from(from.descriptor());
  try {
    from.receive_bytes(*bytes);
  } catch (...) {
    set_reads_from(-1);
    throw;
  }
  set_reads_from(-1);
  return bytes;
}

std::unique_ptr<mesh::Relay> WeightLinks::connect_to_next(const sampling::Chain& chain) const {
  if (chain.next.is_none()) return nullptr;
  try {
    std::unique_ptr<mesh::Channel> next = connect(chain.next, settings_.secret, settings_.patience_s);
    if (!next) return nullptr;  // it is gone, which the run sees too
    next->send(std::to_string(chain.number));
    return std::make_unique<mesh::Relay>(std::move(next), kWaitingBytes);
  } catch (const mesh::ChannelClosed& error) {
    base::log_warning("the next process that samples gets no weights from this one: {}", error.what());
    return nullptr;
  }
}

std::unique_ptr<mesh::Channel> WeightLinks::wait_for_previous(const std::stop_token& end, uint64_t chain) {
  const base::Clock::time_point begin = base::Clock::now();
  const double patience_s = std::min(settings_.patience_s, kConnects);
  for (double left_s = patience_s; left_s > 0.0 && !end.stop_requested();
       left_s = patience_s - base::seconds_since(begin)) {
    std::unique_ptr<mesh::Channel> previous = listener_.accept();
    if (!previous) {
      std::vector<int> descriptors = listener_.descriptors();
      descriptors.push_back(end_.descriptor());
      base::wait_readable(descriptors, left_s);
    } else if (is_of_chain(*previous, chain, left_s)) {
      return previous;
    }
  }
  throw mesh::ChannelClosed(fmt::format("nobody has come for {:g} s", patience_s));
}

}  // namespace tandem::rollout_worker
