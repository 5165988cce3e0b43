#include "device/cuda/nccl_communicator.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "base/check.h"
#include "device/cuda/nccl.h"
#include "device/cuda/peer_memory.h"
#include "device/exchange_pieces.h"

namespace tandem::device {
namespace {

using Clock = std::chrono::steady_clock;
using Lock = std::unique_lock<std::mutex>;

constexpr std::chrono::milliseconds kWatchInterval{100};
constexpr std::chrono::seconds kLongestEnd{10};

void check(cudaError_t error, const char* what) {
  TANDEM_ENV_CHECK(error == cudaSuccess, "the GPU's", what, "failed:", cudaGetErrorString(error));
}

class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  void hold_up(cudaStream_t stream) const { check(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent"); }
  bool is_pending() const { return cudaEventQuery(event_) == cudaErrorNotReady; }

 private:
  cudaEvent_t event_ = nullptr;
};

// NCCL reads its settings from the environment, when it is first used.
void set_up_nccl(const std::string& interface) {
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  if (!interface.empty()) setenv("NCCL_SOCKET_IFNAME", ("=" + interface).c_str(), 1);
}

bool is_recording(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(int index, DeviceRanks settings);
  ~NcclCommunicator() override;

  int rank() const override { return settings_.rank; }
  int size() const override { return settings_.size; }
  std::unique_ptr<Exchange> start_exchange(TensorLists to, TensorLists from) override;
  bool sum(const at::Tensor& part, const at::Tensor& residual, const at::Tensor& out) override;
  void abort() noexcept override;
  void throw_if_failed();
  // Every rank calls it, or none.
  void open_peers() { peers_ = cuda::PeerMemories::open(index_, *this); }

 private:
  // An exchange as the thread that watches sees it.
  struct Watched {
    std::shared_ptr<Event> done;
    Clock::time_point deadline;
  };

  void send_and_receive(const TensorLists& to, const TensorLists& from, Lock& lock);
  // Until NCCL's calls, which return at once, have done what they are for.
  void settle(ncclResult_t result, const char* operation, Clock::time_point deadline, Lock& lock);
  void watch();
  void watch_once();
  // With mutex_ locked: the first failure stays, and ends NCCL's work on the device.
  void fail(std::string why);
  std::string reason(ncclResult_t result) const;

  const DeviceRanks settings_;
  const c10::DeviceIndex index_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<Event> ready_ = std::make_unique<Event>();
  ncclComm_t communicator_ = nullptr;  // null: ended
  std::mutex mutex_;
  std::string failure_;  // empty: none
  bool is_closing_ = false;
  std::condition_variable changed_;
  std::deque<Watched> under_way_;
  std::thread watcher_;
  std::unique_ptr<cuda::PeerMemories> peers_;  // null: sum() is not for these ranks
};

class NcclExchange final : public Communicator::Exchange {
 public:
  NcclExchange(NcclCommunicator& ranks, std::shared_ptr<Event> done, TensorLists to, TensorLists from)
      : ranks_(ranks), done_(std::move(done)), to_(std::move(to)), from_(std::move(from)) {}
  ~NcclExchange() override {
    try {
      wait();
    } catch (const std::exception&) {  // whoever wants to know calls wait()
    }
  }

  void wait() override {
    if (done_ == nullptr) return;
    const std::shared_ptr<Event> done = std::move(done_);
    done->hold_up(c10::cuda::getCurrentCUDAStream().stream());
    // Whoever is given their memory from now on works behind the event.
    to_.clear();
    from_.clear();
    ranks_.throw_if_failed();
  }

 private:
  NcclCommunicator& ranks_;
  std::shared_ptr<Event> done_;
  TensorLists to_, from_;
};

NcclCommunicator::NcclCommunicator(int index, DeviceRanks settings)
    : settings_(std::move(settings)), index_(static_cast<c10::DeviceIndex>(index)) {
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), "cudaStreamCreateWithPriority");
  ncclUniqueId id;
  TANDEM_CHECK_EQ(settings_.id.size(), sizeof id, "an id of NCCL");
  std::memcpy(&id, settings_.id.data(), sizeof id);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  Lock lock(mutex_);
  settle(nccl().ncclCommInitRankConfig(&communicator_, size(), id, rank(), &config), "joining",
         Clock::now() + duration_of(settings_.timeout_s), lock);
  watcher_ = std::thread([this] { watch(); });
}

NcclCommunicator::~NcclCommunicator() {
  {
    const std::scoped_lock lock(mutex_);
    is_closing_ = true;
    changed_.notify_all();
  }
  watcher_.join();
  peers_.reset();
  Lock lock(mutex_);
  if (communicator_ != nullptr) {
    try {
      settle(nccl().ncclCommFinalize(communicator_), "ending", Clock::now() + kLongestEnd, lock);
      nccl().ncclCommDestroy(communicator_);
    } catch (const std::exception&) {  // it is aborted instead
    }
  }
  cudaStreamDestroy(stream_);
}

void NcclCommunicator::settle(ncclResult_t result, const char* operation, Clock::time_point deadline, Lock& lock) {
  const Clock::time_point start = Clock::now();
  while (result == ncclInProgress && failure_.empty() && Clock::now() < deadline) {
    lock.unlock();  // so that abort() is heard
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    lock.lock();
    if (communicator_ != nullptr && nccl().ncclCommGetAsyncError(communicator_, &result) != ncclSuccess) break;
  }
  if (result == ncclSuccess && failure_.empty()) return;
  const double waited_s = std::chrono::duration<double>(Clock::now() - start).count();
  fail(result == ncclInProgress ? "not all ranks answered" : reason(result));
  const std::string message = fmt::format("NCCL: {}: {}; waited {:.1f} s", operation, failure_, waited_s);
  if (result == ncclInvalidArgument || result == ncclInvalidUsage) throw EnvironmentError(message);
  throw PeerLost(message);
}

std::string NcclCommunicator::reason(ncclResult_t result) const {
  const std::string details = communicator_ == nullptr ? "" : nccl().ncclGetLastError(communicator_);
  return fmt::format("{} ({})", nccl().ncclGetErrorString(result), details.substr(0, details.find('\n')));
}

void NcclCommunicator::fail(std::string why) {
  if (failure_.empty()) failure_ = std::move(why);
  if (communicator_ != nullptr) nccl().ncclCommAbort(std::exchange(communicator_, nullptr));
  if (peers_) peers_->give_up();
  under_way_.clear();
}

void NcclCommunicator::abort() noexcept {
  const std::scoped_lock lock(mutex_);
  const c10::cuda::CUDAGuard guard(index_);
  fail("aborted on this rank");
}

void NcclCommunicator::throw_if_failed() {
  const std::scoped_lock lock(mutex_);
  if (!failure_.empty()) throw PeerLost(fmt::format("NCCL: exchange: {}", failure_));
}

std::unique_ptr<Communicator::Exchange> NcclCommunicator::start_exchange(TensorLists to, TensorLists from) {
  throw_if_failed();
  const c10::cuda::CUDAGuard guard(index_);
  ready_->record(c10::cuda::getCurrentCUDAStream().stream());
  ready_->hold_up(stream_);
  auto done = std::make_shared<Event>();
  Lock lock(mutex_);
  send_and_receive(to, from, lock);
  done->record(stream_);
  // While a CUDA graph is recorded nothing runs, and the events in it must not be queried: there is nothing to watch.
  if (!is_recording(stream_)) {
    under_way_.push_back({done, Clock::now() + duration_of(settings_.timeout_s)});
    changed_.notify_all();
  }
  return std::make_unique<NcclExchange>(*this, std::move(done), std::move(to), std::move(from));
}

bool NcclCommunicator::sum(const at::Tensor& part, const at::Tensor& residual, const at::Tensor& out) {
  const auto is_aligned = [](const at::Tensor& x) { return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0; };
  constexpr int64_t kVector = 8;
  if (!peers_ || part.numel() % kVector != 0 || static_cast<int64_t>(part.nbytes()) > cuda::kPeerPartBytes)
    return false;
  TANDEM_CHECK(is_aligned(part) && is_aligned(out) && part.is_contiguous() && out.is_contiguous());
  TANDEM_CHECK(!residual.defined() || (is_aligned(residual) && residual.is_contiguous()));
  throw_if_failed();
  check(cuda::peer_sum(peers_->peers(), part.const_data_ptr(), part.scalar_type() == at::kFloat,
                       residual.defined() ? residual.const_data_ptr() : nullptr, out.mutable_data_ptr(),
                       out.scalar_type() == at::kFloat, part.numel(), c10::cuda::getCurrentCUDAStream().stream()),
        "sum over ranks");
  return true;
}

void NcclCommunicator::send_and_receive(const TensorLists& to, const TensorLists& from, Lock& lock) {
  const std::vector<Piece> sent = pieces_of(*this, to), received = pieces_of(*this, from);
  if (!failure_.empty() || (sent.empty() && received.empty())) return;
  const NcclCalls& calls = nccl();
  calls.ncclGroupStart();
  ncclResult_t result = ncclSuccess;
  const auto keep = [&result](ncclResult_t next) {
    if (result == ncclSuccess && next != ncclInProgress) result = next;
  };
  for (const Piece& piece : received) {
    keep(calls.ncclRecv(piece.data, static_cast<size_t>(piece.bytes), ncclUint8, piece.rank, communicator_, stream_));
  }
  for (const Piece& piece : sent) {
    keep(calls.ncclSend(piece.data, static_cast<size_t>(piece.bytes), ncclUint8, piece.rank, communicator_, stream_));
  }
  const ncclResult_t ended = calls.ncclGroupEnd();
  settle(result == ncclSuccess ? ended : result, "exchange", Clock::now() + duration_of(settings_.timeout_s), lock);
}

void NcclCommunicator::watch() {
  c10::cuda::set_device(index_);
  // While another thread records a graph, this one may still ask for an event.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  Lock lock(mutex_);
  while (!is_closing_) {
    if (under_way_.empty()) {
      changed_.wait(lock);
    } else {
      changed_.wait_for(lock, kWatchInterval, [this] { return is_closing_; });
      watch_once();
    }
  }
}

void NcclCommunicator::watch_once() {
  while (!under_way_.empty() && !under_way_.front().done->is_pending()) under_way_.pop_front();
  if (communicator_ == nullptr) return;
  ncclResult_t result = ncclSuccess;
  nccl().ncclCommGetAsyncError(communicator_, &result);
  if (result != ncclSuccess && result != ncclInProgress) {
    fail(reason(result));
  } else if (!under_way_.empty() && Clock::now() >= under_way_.front().deadline) {
    fail(fmt::format("not all ranks answered within {} s", settings_.timeout_s));
  }
}

}  // namespace

std::string make_nccl_id(const std::string& interface) {
  set_up_nccl(interface);
  ncclUniqueId id;
  const ncclResult_t result = nccl().ncclGetUniqueId(&id);
  TANDEM_ENV_CHECK(result == ncclSuccess, "NCCL cannot listen:", nccl().ncclGetLastError(nullptr),
                   "; choose another network interface");
  return {id.internal, sizeof id.internal};
}

std::unique_ptr<Communicator> make_nccl_communicator(int index, const DeviceRanks& ranks) {
  set_up_nccl(ranks.interface);
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(index));
  auto communicator = std::make_unique<NcclCommunicator>(index, ranks);
  if (ranks.adds_up) communicator->open_peers();
  return communicator;
}

}  // namespace tandem::device
