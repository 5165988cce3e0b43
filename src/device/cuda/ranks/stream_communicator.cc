#include "device/cuda/ranks/stream_communicator.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>

#include <utility>

namespace tandem::device::cuda {
namespace {

constexpr std::chrono::milliseconds kWatchInterval{100};
constexpr std::chrono::milliseconds kEndInterval{2};

bool is_recording(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_runtime(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

class StreamExchange final : public Communicator::Exchange {
 public:
  StreamExchange(StreamCommunicator& ranks, std::shared_ptr<Event> done, TensorLists to, TensorLists from)
      : ranks_(ranks), done_(std::move(done)), to_(std::move(to)), from_(std::move(from)) {}
  ~StreamExchange() override {
    try {
      wait();
    } catch (const std::exception&) {  // a caller who needs the error calls wait()
    }
  }

  void wait() override {
    if (done_ == nullptr) return;
    const std::shared_ptr<Event> done = std::move(done_);
    ranks_.wait_for(*done);
    // Work that is given their memory from now on is queued after the event.
    to_.clear();
    from_.clear();
    ranks_.throw_if_failed();
  }

 private:
  StreamCommunicator& ranks_;
  std::shared_ptr<Event> done_;
  TensorLists to_, from_;
};

}  // namespace

StreamCommunicator::StreamCommunicator(std::string name, int index, int rank, int size, double timeout_s)
    : name_(std::move(name)),
      index_(static_cast<c10::DeviceIndex>(index)),
      rank_(rank),
      size_(size),
      timeout_s_(timeout_s) {
  int least = 0, greatest = 0;
  check_runtime(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  check_runtime(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest),
                "cudaStreamCreateWithPriority");
}

StreamCommunicator::~StreamCommunicator() { cudaStreamDestroy(stream_); }

StreamCommunicator::Clock::time_point StreamCommunicator::deadline() const {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s_));
}

void StreamCommunicator::set_timeout(double timeout_s) {
  const std::scoped_lock lock(mutex_);
  timeout_s_ = timeout_s;
}

void StreamCommunicator::begin_watching() {
  watcher_ = std::thread([this] { watch(); });
}

void StreamCommunicator::end_watching() {
  {
    const std::scoped_lock lock(mutex_);
    is_closing_ = true;
    changed_.notify_all();
  }
  if (watcher_.joinable()) watcher_.join();
}

void StreamCommunicator::fail(std::string why) {
  if (failure_.empty()) failure_ = std::move(why);
  under_way_.clear();
  end_queued();
  changed_.notify_all();
}

void StreamCommunicator::abort() noexcept {
  const std::scoped_lock lock(mutex_);
  const c10::cuda::CUDAGuard guard(index_);
  fail("aborted on this rank");
}

void StreamCommunicator::throw_if_failed() {
  const std::scoped_lock lock(mutex_);
  if (!failure_.empty()) throw PeerLost(fmt::format("{}: exchange: {}", name_, failure_));
}

void StreamCommunicator::wait_for(const Event& done) {
  const cudaStream_t current = c10::cuda::getCurrentCUDAStream().stream();
  const bool is_measured = !is_recording(current);
  if (is_measured) waits_.begin(current);
  done.hold_up(current);
  if (is_measured) waits_.end(current);
}

std::unique_ptr<Communicator::Exchange> StreamCommunicator::start_exchange(TensorLists to, TensorLists from) {
  throw_if_failed();
  const c10::cuda::CUDAGuard guard(index_);
  const std::vector<Piece> sent = pieces_of(*this, to), received = pieces_of(*this, from);
  if (!is_recording(c10::cuda::getCurrentCUDAStream().stream())) {
    for (const Piece& piece : sent) count_sent(piece.bytes);
  }
  ready_.record(c10::cuda::getCurrentCUDAStream().stream());
  ready_.hold_up(stream_);
  auto done = std::make_shared<Event>();
  Lock lock(mutex_);
  if (failure_.empty() && !(sent.empty() && received.empty())) queue(sent, received, lock);
  done->record(stream_);
  // While a CUDA graph is recorded nothing runs, and the events in it must not be queried: there is nothing to watch.
  if (failure_.empty() && !is_recording(stream_)) {
    under_way_.push_back({done, deadline()});
    changed_.notify_all();
  }
  return std::make_unique<StreamExchange>(*this, std::move(done), std::move(to), std::move(from));
}

void StreamCommunicator::watch() {
  c10::cuda::set_device(index_);
  // While another thread records a graph, this one may still query an event.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  Lock lock(mutex_);
  const auto is_closing = [this] { return is_closing_; };
  while (!is_closing_) {
    if (!failure_.empty()) {
      end_queued();
      changed_.wait_for(lock, kEndInterval, is_closing);
    } else if (under_way_.empty()) {
      changed_.wait(lock);
    } else {
      changed_.wait_for(lock, kWatchInterval, is_closing);
      watch_once();
    }
  }
}

void StreamCommunicator::watch_once() {
  while (!under_way_.empty() && !under_way_.front().done->is_pending()) under_way_.pop_front();
  if (!failure_.empty()) return;
  if (std::string why = trouble(); !why.empty()) {
    fail(std::move(why));
  } else if (!under_way_.empty() && Clock::now() >= under_way_.front().deadline) {
    fail(fmt::format("not all ranks answered within {} s", timeout_s_));
  }
}

}  // namespace tandem::device::cuda
