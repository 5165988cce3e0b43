#include "tests/pretend_device/pretend_communicator.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <chrono>
#include <random>
#include <thread>
#include <utility>

#include "base/check.h"
#include "device/transfer.h"
#include "mesh/local_socket.h"
#include "mesh/socket_communicator.h"

namespace tandem::pretend_device {
namespace {

// Stages what is sent in tensors of the host, and what is received until wait() copies it to the device.
class StagedExchange final : public device::Communicator::Exchange {
 public:
  StagedExchange(device::Communicator& hosts, const device::TensorLists& to, device::TensorLists from)
      : from_(std::move(from)) {
    device::TensorLists sent = to;
    received_ = from_;
    for (auto& tensors : sent)
      for (at::Tensor& tensor : tensors) tensor = device::to_host(tensor);
    for (auto& tensors : received_)
      for (at::Tensor& tensor : tensors) tensor = at::empty(tensor.sizes(), tensor.scalar_type());
    const auto own = static_cast<size_t>(hosts.rank());
    from_[own] = received_[own] = {};  // they are ignored
    exchange_ = hosts.start_exchange(std::move(sent), received_);
  }
  void wait() override {
    exchange_->wait();
    for (size_t rank = 0; rank < from_.size(); ++rank)
      for (size_t i = 0; i < from_[rank].size(); ++i) from_[rank][i].copy_(received_[rank][i]);
  }

 private:
  device::TensorLists from_, received_;
  std::unique_ptr<Exchange> exchange_;
};

class PretendCommunicator final : public device::Communicator {
 public:
  explicit PretendCommunicator(std::unique_ptr<Communicator> hosts) : hosts_(std::move(hosts)) {}
  int rank() const override { return hosts_->rank(); }
  int size() const override { return hosts_->size(); }
  std::unique_ptr<Exchange> start_exchange(device::TensorLists to, device::TensorLists from) override {
    return std::make_unique<StagedExchange>(*hosts_, to, std::move(from));
  }
  device::Traffic traffic() override { return hosts_->traffic(); }
  void abort() noexcept override { hosts_->abort(); }

 private:
  std::unique_ptr<Communicator> hosts_;
};

mesh::OwnedDescriptor next_of(const mesh::LocalListener& listener, std::chrono::steady_clock::time_point deadline) {
  while (true) {
    if (std::optional<mesh::OwnedDescriptor> socket = listener.accept()) return std::move(*socket);
    if (std::chrono::steady_clock::now() > deadline) throw device::PeerLost("hccl: joining: not all ranks came");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

// Each rank listens under a name of its own, and connects to those before it with its number as the first word.
std::unique_ptr<device::Communicator> make_communicator(const device::DeviceRanks& ranks) {
  std::random_device random;
  const std::string name = fmt::format("pretend-{:08x}{:08x}", random(), random());
  const mesh::LocalListener listener(name, "start the test again");
  const std::vector<std::string> names = device::all_gather_text(ranks.hosts, name);
  const int rank = ranks.hosts.rank(), size = ranks.hosts.size();
  std::vector<mesh::Connection> connections(names.size());
  for (int to = 0; to < rank; ++to) {
    std::optional<mesh::OwnedDescriptor> socket = mesh::connect_locally(names[static_cast<size_t>(to)]);
    if (!socket) throw device::PeerLost(fmt::format("hccl: joining: rank {} is gone", to));
    TANDEM_CHECK_EQ(::send(socket->get(), &rank, sizeof rank, MSG_NOSIGNAL), ssize_t{sizeof rank});
    connections[static_cast<size_t>(to)].socket = std::move(*socket);
  }
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(static_cast<int64_t>(1000 * ranks.timeout_s));
  for (int i = rank + 1; i < size; ++i) {
    mesh::OwnedDescriptor socket = next_of(listener, deadline);
    int from = 0;
    if (::recv(socket.get(), &from, sizeof from, MSG_WAITALL) != ssize_t{sizeof from}) {
      throw device::PeerLost("hccl: joining: a rank is gone");
    }
    connections.at(static_cast<size_t>(from)).socket = std::move(socket);
  }
  return std::make_unique<PretendCommunicator>(mesh::make_socket_communicator({.name = "hccl",
                                                                               .rank = rank,
                                                                               .connections = std::move(connections),
                                                                               .wait_s = ranks.timeout_s,
                                                                               .silence_s = ranks.timeout_s}));
}

}  // namespace tandem::pretend_device
