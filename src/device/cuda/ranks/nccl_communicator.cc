#include "device/cuda/ranks/nccl_communicator.h"

#include <c10/cuda/CUDAGuard.h>
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "device/cuda/ranks/nccl.h"
#include "device/cuda/ranks/stream_communicator.h"

namespace tandem::device {
namespace {

constexpr std::chrono::seconds kLongestEnd{10};

// NCCL reads its settings from the environment, when it is first used.
void set_up_nccl(const std::string& interface) {
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  if (!interface.empty()) setenv("NCCL_SOCKET_IFNAME", ("=" + interface).c_str(), 1);
}

// Makes the id by which ranks find each other; rank 0 listens there.
std::string make_id() {
  ncclUniqueId id;
  const ncclResult_t result = nccl().ncclGetUniqueId(&id);
  TANDEM_ENV_CHECK(result == ncclSuccess, "NCCL cannot listen:", nccl().ncclGetLastError(nullptr),
                   "; choose another network interface");
  return {id.internal, sizeof id.internal};
}

class NcclCommunicator final : public cuda::StreamCommunicator {
 public:
  NcclCommunicator(int index, const DeviceRanks& ranks, const std::string& id);
  ~NcclCommunicator() override;

 private:
  void queue(const std::vector<Piece>& to, const std::vector<Piece>& from, Lock& lock) override;
  void end_queued() noexcept override;
  std::string trouble() override;
  // Waits until NCCL's calls, which return at once, have done their work.
  void settle(ncclResult_t result, const char* operation, Clock::time_point deadline, Lock& lock);
  std::string reason(ncclResult_t result) const;

  ncclComm_t communicator_ = nullptr;  // null: it has ended
};

NcclCommunicator::NcclCommunicator(int index, const DeviceRanks& ranks, const std::string& id)
    : StreamCommunicator("NCCL", index, ranks.hosts.rank(), ranks.hosts.size(), ranks.timeout_s) {
  ncclUniqueId unique;
  TANDEM_ENV_CHECK(id.size() == sizeof unique, "rank 0 gave no id of NCCL");
  std::memcpy(&unique, id.data(), sizeof unique);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  Lock lock(mutex());
  settle(nccl().ncclCommInitRankConfig(&communicator_, size(), unique, rank(), &config), "joining", deadline(), lock);
  lock.unlock();
  begin_watching();
}

NcclCommunicator::~NcclCommunicator() {
  end_watching();
  Lock lock(mutex());
  if (communicator_ == nullptr) return;
  try {
    settle(nccl().ncclCommFinalize(communicator_), "ending", Clock::now() + kLongestEnd, lock);
    nccl().ncclCommDestroy(communicator_);
  } catch (const std::exception&) {  // it is aborted instead
  }
}

void NcclCommunicator::settle(ncclResult_t result, const char* operation, Clock::time_point deadline, Lock& lock) {
  const Clock::time_point start = Clock::now();
  while (result == ncclInProgress && failure().empty() && Clock::now() < deadline) {
    lock.unlock();  // lets abort() take the lock
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    lock.lock();
    if (communicator_ != nullptr && nccl().ncclCommGetAsyncError(communicator_, &result) != ncclSuccess) break;
  }
  if (result == ncclSuccess && failure().empty()) return;
  const double waited_s = std::chrono::duration<double>(Clock::now() - start).count();
  fail(result == ncclInProgress ? "not all ranks answered" : reason(result));
  const std::string message = fmt::format("NCCL: {}: {}; waited {:.1f} s", operation, failure(), waited_s);
  if (result == ncclInvalidArgument || result == ncclInvalidUsage) throw EnvironmentError(message);
  throw PeerLost(message);
}

std::string NcclCommunicator::reason(ncclResult_t result) const {
  const std::string details = communicator_ == nullptr ? "" : nccl().ncclGetLastError(communicator_);
  return fmt::format("{} ({})", nccl().ncclGetErrorString(result), details.substr(0, details.find('\n')));
}

void NcclCommunicator::end_queued() noexcept {
  if (communicator_ != nullptr) nccl().ncclCommAbort(std::exchange(communicator_, nullptr));
}

std::string NcclCommunicator::trouble() {
  if (communicator_ == nullptr) return {};
  ncclResult_t result = ncclSuccess;
  nccl().ncclCommGetAsyncError(communicator_, &result);
  return result == ncclSuccess || result == ncclInProgress ? std::string() : reason(result);
}

void NcclCommunicator::queue(const std::vector<Piece>& to, const std::vector<Piece>& from, Lock& lock) {
  const NcclCalls& calls = nccl();
  calls.ncclGroupStart();
  ncclResult_t result = ncclSuccess;
  const auto keep = [&result](ncclResult_t next) {
    if (result == ncclSuccess && next != ncclInProgress) result = next;
  };
  for (const Piece& piece : from) {
    keep(calls.ncclRecv(piece.data, static_cast<size_t>(piece.bytes), ncclUint8, piece.rank, communicator_, stream()));
  }
  for (const Piece& piece : to) {
    keep(calls.ncclSend(piece.data, static_cast<size_t>(piece.bytes), ncclUint8, piece.rank, communicator_, stream()));
  }
  const ncclResult_t ended = calls.ncclGroupEnd();
  settle(result == ncclSuccess ? ended : result, "exchange", deadline(), lock);
}

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(int index, const DeviceRanks& ranks) {
  set_up_nccl(ranks.interface);
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(index));
  const std::string id = broadcast_text(ranks.hosts, 0, ranks.hosts.rank() == 0 ? make_id() : "");
  return std::make_unique<NcclCommunicator>(index, ranks, id);
}

}  // namespace tandem::device
