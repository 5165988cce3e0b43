#include "device/npu/hccl_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "device/exchange_pieces.h"

namespace tandem::device {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kLookInterval{20};     // between two looks at the stream
constexpr std::chrono::milliseconds kTroubleInterval{20};  // between two questions for HCCL's errors

// HCCL reads its settings from the environment, when it is first used: how long it waits for a connection, which may be
// 120 to 7200 s, and on the device for another rank.
void set_up_hccl(const DeviceRanks& ranks) {
  const double seconds = std::ceil(ranks.timeout_s);
  setenv("HCCL_CONNECT_TIMEOUT", fmt::format("{:.0f}", std::clamp(seconds, 120.0, 7200.0)).c_str(), 1);
  setenv("HCCL_EXEC_TIMEOUT", fmt::format("{:.0f}", seconds).c_str(), 1);
  if (!ranks.interface.empty()) setenv("HCCL_SOCKET_IFNAME", ("=" + ranks.interface).c_str(), 1);
}

std::string text_of(const npu::HcclCalls& hccl, npu::HcclResult result) {
  const char* const text = hccl.HcclGetErrorString(result);
  return fmt::format("error {}{}{}", result, text == nullptr ? "" : ", ", text == nullptr ? "" : text);
}

// Makes the bytes by which ranks find each other; rank 0 listens there.
std::string make_root(const npu::HcclCalls& hccl) {
  npu::HcclRootInfo root;
  const npu::HcclResult result = hccl.HcclGetRootInfo(&root);
  TANDEM_ENV_CHECK(result == npu::kHcclSuccess, "HCCL cannot listen:",
                   text_of(hccl, result) + "; choose another network interface (--network-interface)");
  return {root.bytes.data(), root.bytes.size()};
}

// Nothing says in which order HCCL delivers several tensors of one call to one rank, so an exchange is one call for
// each place in the lists. Both ranks of a pair have lists of the same lengths and leave out the same empty tensors.
std::vector<std::vector<npu::HcclSendRecvItem>> rounds_of(const std::vector<Piece>& to,
                                                          const std::vector<Piece>& from) {
  std::vector<std::vector<npu::HcclSendRecvItem>> rounds;
  for (const auto& [pieces, type] : {std::pair{&to, npu::kHcclSend}, {&from, npu::kHcclReceive}}) {
    size_t round = 0;
    for (size_t i = 0; i < pieces->size(); ++i) {  // they lie by rank
      const Piece& piece = (*pieces)[i];
      round = i > 0 && (*pieces)[i - 1].rank == piece.rank ? round + 1 : 0;
      if (rounds.size() <= round) rounds.resize(round + 1);
      rounds[round].push_back({.type = type,
                               .data = piece.data,
                               .count = static_cast<uint64_t>(piece.bytes),
                               .data_type = npu::kHcclBytes,
                               .remote_rank = static_cast<uint32_t>(piece.rank)});
    }
  }
  return rounds;
}

class HcclCommunicator final : public Communicator {
 public:
  HcclCommunicator(const npu::AclCalls& acl, const npu::HcclCalls& hccl, int index, const DeviceRanks& ranks,
                   std::function<void()> synchronize);
  ~HcclCommunicator() override;
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<Exchange> start_exchange(TensorLists to, TensorLists from) override;
  Traffic traffic() override { return traffic_; }
  void abort() noexcept override { fail("aborted on this rank"); }

  // Waits until all exchanges that have begun are over. Throws PeerLost.
  void finish(Clock::time_point deadline);

 private:
  // The first failure stays. Any thread may call these two.
  void fail(const std::string& why);
  std::string failure();
  [[noreturn]] void throw_failure(const char* operation);
  // Fails unless a call of HCCL succeeded.
  void check(npu::HcclResult result, const char* operation);
  // Returns whether the stream's work is done; fails where it cannot be done any more.
  bool is_done();

  const npu::AclCalls& acl_;
  const npu::HcclCalls& hccl_;
  const npu::AclDevice device_;
  const int rank_, size_;
  const double timeout_s_;
  const std::function<void()> synchronize_;
  npu::AclStream stream_ = nullptr;
  npu::HcclComm group_ = nullptr;
  Traffic traffic_;
  std::mutex mutex_;
  std::string failure_;  // empty: none
};

class HcclExchange final : public Communicator::Exchange {
 public:
  HcclExchange(HcclCommunicator& ranks, Clock::time_point deadline, TensorLists to, TensorLists from)
      : ranks_(ranks), deadline_(deadline), to_(std::move(to)), from_(std::move(from)) {}
  ~HcclExchange() override {
    try {
      wait();
    } catch (const std::exception&) {  // a caller who needs the error calls wait()
    }
  }
  void wait() override {
    if (std::exchange(is_over_, true)) return;
    ranks_.finish(deadline_);
    to_.clear();
    from_.clear();
  }

 private:
  HcclCommunicator& ranks_;
  const Clock::time_point deadline_;
  TensorLists to_, from_;
  bool is_over_ = false;
};

HcclCommunicator::HcclCommunicator(const npu::AclCalls& acl, const npu::HcclCalls& hccl, int index,
                                   const DeviceRanks& ranks, std::function<void()> synchronize)
    : acl_(acl),
      hccl_(hccl),
      device_(acl, index),
      rank_(ranks.hosts.rank()),
      size_(ranks.hosts.size()),
      timeout_s_(ranks.timeout_s),
      synchronize_(std::move(synchronize)) {
  const npu::CurrentContext current(device_);
  const std::string text = broadcast_text(ranks.hosts, 0, rank_ == 0 ? make_root(hccl) : "");
  npu::HcclRootInfo root;
  TANDEM_ENV_CHECK(text.size() == root.bytes.size(), "rank 0 gave no address of HCCL");
  std::memcpy(root.bytes.data(), text.data(), text.size());
  check(hccl.HcclCommInitRootInfo(static_cast<uint32_t>(size_), &root, static_cast<uint32_t>(rank_), &group_),
        "joining");
  npu::check_acl(acl, acl.aclrtCreateStream(&stream_), "aclrtCreateStream");
}

// After a failure the group and its stream stay: their ends would wait for the rank that is gone.
HcclCommunicator::~HcclCommunicator() {
  if (!failure().empty()) return;
  try {
    const npu::CurrentContext current(device_);
    hccl_.HcclCommDestroy(group_);
    acl_.aclrtDestroyStream(stream_);
  } catch (const EnvironmentError&) {  // the device is lost
  }
}

void HcclCommunicator::fail(const std::string& why) {
  const std::scoped_lock lock(mutex_);
  if (failure_.empty()) failure_ = why;
}

std::string HcclCommunicator::failure() {
  const std::scoped_lock lock(mutex_);
  return failure_;
}

void HcclCommunicator::throw_failure(const char* operation) {
  throw PeerLost(fmt::format("HCCL: {}: {}", operation, failure()));
}

void HcclCommunicator::check(npu::HcclResult result, const char* operation) {
  if (result == npu::kHcclSuccess) return;
  fail(result == npu::kHcclTimeout ? "not all ranks answered" : text_of(hccl_, result));
  if (result == npu::kHcclInvalidParameter || result == npu::kHcclNullPointer || result == npu::kHcclNotSupported) {
    throw EnvironmentError(
        fmt::format("HCCL: {}: {}; please report it with the version of CANN", operation, text_of(hccl_, result)));
  }
  throw_failure(operation);
}

std::unique_ptr<Communicator::Exchange> HcclCommunicator::start_exchange(TensorLists to, TensorLists from) {
  if (!failure().empty()) throw_failure("exchange");
  const std::vector<Piece> sent = pieces_of(*this, to), received = pieces_of(*this, from);
  for (const Piece& piece : sent) traffic_.sent_bytes += piece.bytes;
  const Clock::time_point deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s_));
  synchronize_();
  const npu::CurrentContext current(device_);
  for (std::vector<npu::HcclSendRecvItem>& items : rounds_of(sent, received)) {
    check(hccl_.HcclBatchSendRecv(items.data(), static_cast<uint32_t>(items.size()), group_, stream_), "exchange");
  }
  return std::make_unique<HcclExchange>(*this, deadline, std::move(to), std::move(from));
}

bool HcclCommunicator::is_done() {
  int32_t status = npu::kAclStreamNotReady;
  if (const npu::AclResult result = acl_.aclrtStreamQuery(stream_, &status); result != npu::kAclSuccess) {
    fail(fmt::format("aclrtStreamQuery: error {}", result));
  }
  return status == npu::kAclStreamComplete;
}

void HcclCommunicator::finish(Clock::time_point deadline) {
  const Clock::time_point start = Clock::now();
  const npu::CurrentContext current(device_);
  Clock::time_point next_question = start;
  while (failure().empty() && !is_done()) {
    const Clock::time_point now = Clock::now();
    if (now >= deadline) fail(fmt::format("not all ranks answered within {} s", timeout_s_));
    if (now >= next_question) {
      npu::HcclResult error = npu::kHcclSuccess;
      const npu::HcclResult asked = hccl_.HcclGetCommAsyncError(group_, &error);
      if (asked != npu::kHcclSuccess) error = asked;
      if (error != npu::kHcclSuccess) fail(text_of(hccl_, error));
      next_question = now + kTroubleInterval;
    }
    std::this_thread::sleep_for(kLookInterval);
  }
  traffic_.wait_s += std::chrono::duration<double>(Clock::now() - start).count();
  if (!failure().empty()) throw_failure("exchange");
}

}  // namespace

std::unique_ptr<Communicator> make_hccl_communicator(const npu::AclCalls& acl, const npu::HcclCalls& hccl, int index,
                                                     const DeviceRanks& ranks, std::function<void()> synchronize) {
  set_up_hccl(ranks);
  return std::make_unique<HcclCommunicator>(acl, hccl, index, ranks, std::move(synchronize));
}

}  // namespace tandem::device
