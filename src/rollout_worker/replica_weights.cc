#include "rollout_worker/replica_weights.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/wire.h"
#include "device/transfer.h"
#include "device/waits_for_samples.h"
#include "memory/arena_allocator.h"
#include "model/config.h"
#include "model/registry.h"
#include "weights/shown_weights.h"
#include "weights/sync.h"

namespace tandem::rollout_worker {

namespace {

void append(const std::vector<device::Checksum>& sums, std::vector<uint64_t>& to) {
  for (const device::Checksum& sum : sums) to.insert(to.end(), {sum.first, sum.second});
}

device::TensorLists nothing(const device::Communicator& ranks) {
  return device::TensorLists(static_cast<size_t>(ranks.size()));
}

}  // namespace

ReplicaWeights::ReplicaWeights(const session::ModelSession& session, const mesh::Group& replica, int64_t piece_bytes)
    : session_(session), replica_(replica), piece_bytes_(piece_bytes) {
  TANDEM_CHECK(!has_adapter() || replica_.size() == 1, "an adapter is not spread");
  const memory::BypassArena outside;
  wait_for_device();
  trained_words_ = device::all_gather_text(replica_.host, weights::show_weights(session_.trained(), session_.device()));
  if (has_adapter()) base_words_ = {weights::show_weights(session_.base(), session_.device())};
  is_shown_ = std::ranges::none_of(trained_words_, &std::string::empty);
  is_copied_ = replica_.size() > 1 && device::any_of(replica_.host, replica_.rank() == kFirst && !map_parts());
  if (is_copied_ && replica_.rank() == kFirst) {
    for (int part = 1; part < replica_.size(); ++part) {
      others_.push_back({.mapped = {}, .store = empty_part(part, at::kCPU)});
      others_.back().store.allocate();
    }
    if (!session_.ops().is_on_host())
      base::log_info("memory of the other GPUs cannot be mapped: the host keeps a copy of their weights, {:.2f} GiB",
                     static_cast<double>(copied_bytes()) / (int64_t{1} << 30));
  }
  if (is_copied_) copy_parts();
  if (is_shown_ && replica_.size() > 1) gather_checksums();
}

weights::WeightStore ReplicaWeights::empty_part(int part, at::Device device) const {
  const model::ModelConfig config =
      model::shard_of(model::whole_of(session_.config()), {.rank = part, .size = replica_.size()});
  return weights::WeightStore::without_storage(model::build_layout(config), session_.dtype(), device);
}

// Maps the other ranks' parts. Returns false if one of them cannot be mapped.
bool ReplicaWeights::map_parts() {
  if (!is_shown_) return false;
  std::vector<Part> mapped;
  for (int part = 1; part < replica_.size(); ++part) {
    const at::Tensor memory = device::map_memory(session_.device(), trained_words_[static_cast<size_t>(part)]);
    if (!memory.defined()) return false;
    mapped.push_back({.mapped = memory, .store = empty_part(part, memory.device())});
    if (static_cast<int64_t>(memory.nbytes()) != mapped.back().store.bytes()) return false;
    mapped.back().store.attach(static_cast<std::byte*>(memory.data_ptr()));
  }
  others_ = std::move(mapped);
  return true;
}

int64_t ReplicaWeights::copied_bytes() const {
  int64_t bytes = 0;
  for (const Part& part : others_) bytes += part.mapped.defined() ? 0 : part.store.bytes();
  return bytes;
}

const weights::WeightStore& ReplicaWeights::store(int part, bool is_base) const {
  if (part > kFirst) return others_.at(static_cast<size_t>(part - 1)).store;
  return is_base ? session_.base() : session_.trained();
}

void ReplicaWeights::update(const std::function<void()>& begin, const std::function<void()>& finish) {
  const device::WaitsForSamples waits(replica_.host);  // the first rank waits until rollout workers have paused
  wait_for_device();
  wait_for_all();
  const bool is_first = replica_.rank() == kFirst;
  checksums_.clear();
  if (is_copied_) copy_parts();
  if (is_first) begin();
  if (is_shown_ && replica_.size() > 1) gather_checksums();
  if (is_first) finish();
  wait_for_all();
}

// Waits until the device has done what was queued before, so that other processes see it.
void ReplicaWeights::wait_for_device() const {
  session_.ops().fetch(session_.trained().storage().narrow(0, 0, 1))->wait();
}

void ReplicaWeights::wait_for_all() const {
  const memory::BypassArena outside;
  device::any_of(replica_.host, false);
}

void ReplicaWeights::gather_checksums() {
  const memory::BypassArena outside;
  std::vector<uint64_t> mine;
  append(weights::checksums(session_.trained(), session_.device()), mine);
  base::WireWriter bytes;
  bytes.list(mine);
  std::vector<uint64_t>& all = checksums_[/*is_base=*/false];
  for (const std::string& text : device::all_gather_text(replica_.host, bytes.payload())) {
    const std::vector<uint64_t> of_part = base::WireReader(text).list<uint64_t>();
    all.insert(all.end(), of_part.begin(), of_part.end());
  }
}

// Copies the parts in rounds, one piece of each part at a time: parts differ in size by the rows of the vocabulary.
void ReplicaWeights::copy_parts() {
  const memory::BypassArena outside;
  const auto size = static_cast<int64_t>(c10::elementSize(session_.dtype()));
  const int64_t most = std::max<int64_t>(piece_bytes_ / size, 1);  // elements
  std::vector<int64_t> sizes = {0};                                // elements of each part; the first rank sends none
  for (int part = 1; part < replica_.size(); ++part) sizes.push_back(empty_part(part, at::kCPU).bytes() / size);
  const auto me = static_cast<size_t>(replica_.rank());
  for (int64_t begin = 0; begin < std::ranges::max(sizes); begin += most) {
    const auto piece = [&](const at::Tensor& storage, size_t part) {
      return storage.narrow(0, begin, std::min(most, sizes[part] - begin));
    };
    device::TensorLists to = nothing(replica_.host), from = nothing(replica_.host);
    if (me > 0 && begin < sizes[me]) to[kFirst] = {device::to_host(piece(session_.trained().storage(), me))};
    for (size_t part = 1; me == 0 && part < sizes.size(); ++part) {
      if (begin < sizes[part]) from[part] = {piece(others_[part - 1].store.storage(), part)};
    }
    replica_.host.start_exchange(std::move(to), std::move(from))->wait();
  }
}

const std::vector<uint64_t>& ReplicaWeights::checksums(bool is_base) {
  const auto [found, is_new] = checksums_.try_emplace(is_base);
  TANDEM_CHECK(!is_new || replica_.size() == 1, "the checksums of other ranks' parts are not gathered yet");
  if (is_new) append(weights::checksums(store(kFirst, is_base), session_.device()), found->second);
  return found->second;
}

void ReplicaWeights::send(bool is_base, const SendPiece& send) const {
  for (int part = 0; part < replica_.size(); ++part) {
    const weights::WeightStore& from = store(part, is_base);
    const auto num_tensors = std::ssize(from.layout().tensors);
    const int64_t last_bytes =
        from.layout().tensors.back().num_elements() * static_cast<int64_t>(c10::elementSize(from.dtype()));
    weights::send_weights(from, piece_bytes_, [&](const weights::WeightPiece& piece, std::span<const std::byte> bytes) {
      const bool is_last = piece.tensor + 1 == num_tensors && piece.first_byte + piece.num_bytes == last_bytes;
      send({.is_base = is_base,
            .part = part,
            .tensor = piece.tensor,
            .first_byte = piece.first_byte,
            .num_bytes = piece.num_bytes,
            .checksum = piece.checksum,
            .is_last = is_last,
            .version = version(is_base)},
           bytes);
    });
  }
}

}  // namespace tandem::rollout_worker
