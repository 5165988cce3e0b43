// Copies weights from one process's GPU memory into another's: two processes, on two GPUs if the machine has them, else
// on one. It prints the speed for 8 GB. It is skipped without a GPU.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <future>
#include <stdexcept>

#include "base/check.h"
#include "mesh/channel.h"
#include "model/registry.h"
#include "tests/device/ranks/forked_ranks.h"
#include "tests/model/small_models.h"
#include "weights/shown_weights.h"

namespace tandem::weights {
namespace {

using Clock = std::chrono::steady_clock;
using device::DeviceSpec;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

const std::string& why_no_gpu() {
  static const std::string why = device::run_forked(1, [](int) {
    make_ops(DeviceSpec{.backend = "cuda"}, {.num_threads = 1});
    return std::string();
  })[0];
  return why;
}

int num_gpus() {
  static const bool has_two =
      device::run_forked(1,
                         [](int) {
                           make_ops(DeviceSpec{.backend = "cuda", .index = 1}, {.num_threads = 1});
                           return std::string();
                         })[0]
          .empty();
  return has_two ? 2 : 1;
}

// Holds one of the two processes, with its end of the pipe between them.
struct Side {
  DeviceSpec device;
  std::unique_ptr<device::Ops> ops;
  mesh::Channel channel;

  void say(const std::string& text) { channel.send(text); }
  std::string hear() {
    const std::optional<std::string> text = channel.receive(60.0);
    if (!text) throw std::runtime_error("the other process says nothing");
    return *text;
  }
  void say_checksums(const WeightStore& store) {
    const std::vector<device::Checksum> sums = checksums(store, device);
    say({reinterpret_cast<const char*>(sums.data()), sums.size() * sizeof sums[0]});
  }
  std::vector<device::Checksum> hear_checksums() {
    const std::string text = hear();
    std::vector<device::Checksum> sums(text.size() / sizeof(device::Checksum));
    std::memcpy(sums.data(), text.data(), sums.size() * sizeof sums[0]);
    return sums;
  }
  at::Device on() const { return ops->device(); }
  void wait_for_device(const WeightStore& store) const { ops->fetch(store.storage().narrow(0, 0, 1))->wait(); }
};

void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

// Returns the error of either process, or "".
std::string with_two(const std::function<void(Side&)>& shows, const std::function<void(Side&)>& maps) {
  std::array<int, 2> ends{};
  TANDEM_CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  const int last = num_gpus() - 1;
  const std::vector<std::string> outcomes = device::run_forked(2, [&](int rank) {
    const DeviceSpec device{.backend = "cuda", .index = rank == 0 ? 0 : last};
    close(ends[static_cast<size_t>(1 - rank)]);
    Side side{.device = device,
              .ops = make_ops(device, {.num_threads = 1}),
              .channel = {mesh::OwnedDescriptor(ends[static_cast<size_t>(rank)]), 60.0}};
    (rank == 0 ? shows : maps)(side);
    side.say("done");
    require(side.hear() == "done", "the other process is not done");
    return std::string();
  });
  close(ends[0]);
  close(ends[1]);
  return outcomes[0] + outcomes[1];
}

WeightStore store_of(const model::ModelConfig& config, const Side& side) {
  return WeightStore(model::build_layout(config), at::kBFloat16, side.on());
}

void draw(const WeightStore& store) { store.storage().view(at::kShort).random_(-32768, 32768); }

std::string bytes_of(const WeightStore& store) {
  const at::Tensor host = store.storage().cpu();
  return {static_cast<const char*>(host.const_data_ptr()), host.nbytes()};
}

ShownWeights mapped(WeightStore& store, const Side& side, const std::string& word) {
  std::optional<ShownWeights> shown = ShownWeights::map(store, side.device, word);
  require(shown.has_value(), "the memory cannot be mapped");
  return std::move(*shown);
}

// Two small stores lie in one allocation, which is mapped once. A mapping of the memory may be closed and opened again.
// Every other version is copied ahead, in a thread, while this one queues work.
TEST(ShownWeightsOn_cuda, GoFromProcessToProcess) {
  if (!why_no_gpu().empty()) GTEST_SKIP() << why_no_gpu();
  const model::ModelConfig config = model::odd_config(false);
  constexpr int kVersions = 20;
  const auto shows = [&](Side& side) {
    const WeightStore first = store_of(config, side), second = store_of(config, side);
    for (const WeightStore* store : {&first, &second}) {
      const std::string word = show_weights(*store, side.device);
      require(!word.empty(), "the memory cannot be shown");
      side.say(word);
    }
    for (int version = 0; version < kVersions; ++version) {
      for (const WeightStore* store : {&first, &second}) {
        draw(*store);
        side.wait_for_device(*store);
        side.say("copy");
        side.say_checksums(*store);
        side.say(bytes_of(*store));
        require(side.hear() == "took", "it was not taken");
      }
    }
  };
  const auto maps = [&](Side& side) {
    WeightStore first = store_of(config, side), second = store_of(config, side);
    const std::string words[] = {side.hear(), side.hear()};
    for (int version = 0; version < kVersions; ++version) {
      std::array shown{mapped(first, side, words[0]), mapped(second, side, words[1])};
      for (size_t i = 0; i < 2; ++i) {
        require(side.hear() == "copy", "copy");
        const WeightStore& store = i == 0 ? first : second;
        if (version % 2 == 0) {
          shown[i].copy();
        } else {
          shown[i].allocate_second();
          const std::string before = bytes_of(store);
          std::future<void> copy = std::async(std::launch::async, [&] { shown[i].copy_ahead(); });
          while (copy.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
            require(bytes_of(store) == before, "the store is not as it was");
          }
          copy.get();
        }
        shown[i].finish(1, side.hear_checksums());
        require(bytes_of(store) == side.hear(), "other weights arrived");
        side.say("took");
      }
    }
  };
  EXPECT_EQ(with_two(shows, maps), "");
}

TEST(ShownWeightsOn_cuda, ThatChangeWhileTheyAreCopiedAreFound) {
  if (!why_no_gpu().empty()) GTEST_SKIP() << why_no_gpu();
  const model::ModelConfig config = model::odd_config(false);
  const auto shows = [&](Side& side) {
    const WeightStore store = store_of(config, side);
    draw(store);
    side.wait_for_device(store);
    side.say(show_weights(store, side.device));
    require(side.hear() == "copied", "copied");
    store.tensor("head").view(-1).view(at::kShort).narrow(0, 7, 1).add_(1);
    side.say_checksums(store);
  };
  const auto maps = [&](Side& side) {
    WeightStore store = store_of(config, side);
    ShownWeights shown = mapped(store, side, side.hear());
    shown.copy();
    side.say("copied");
    std::string why;
    try {
      shown.finish(1, side.hear_checksums());
    } catch (const EnvironmentError& error) {
      why = error.what();
    }
    require(why.find("of head ") != std::string::npos, "it was not found");
    require(!store.is_whole(), "the store is whole");
  };
  EXPECT_EQ(with_two(shows, maps), "");
}

// The exporting process has ended: the mapped memory can still be read, or the copy fails. A store never counts as
// whole with other weights.
TEST(ShownWeightsOn_cuda, WhoShowsMayEndFirst) {
  if (!why_no_gpu().empty()) GTEST_SKIP() << why_no_gpu();
  const model::ModelConfig config = model::odd_config(false);
  const auto shows = [&](Side& side) {
    const WeightStore store = store_of(config, side);
    draw(store);
    side.wait_for_device(store);
    side.say(show_weights(store, side.device));
    side.say_checksums(store);
    require(side.hear() == "mapped", "mapped");
    side.say("ending");
    throw std::runtime_error("ended;");
  };
  const auto maps = [&](Side& side) {
    WeightStore store = store_of(config, side);
    ShownWeights shown = mapped(store, side, side.hear());
    const std::vector<device::Checksum> sums = side.hear_checksums();
    side.say("mapped");
    require(side.hear() == "ending", "ending");
    usleep(1'000'000);
    try {
      shown.copy();
      shown.finish(1, sums);
      fmt::print("the copy is whole\n");
    } catch (const std::exception& error) {
      fmt::print("the copy failed: {}\n", error.what());
      require(!store.is_whole(), "the store is whole");
    }
    throw std::runtime_error("copied or refused");
  };
  EXPECT_EQ(with_two(shows, maps), "ended;copied or refused");
}

// The arena's memory is mapped page by page: no handle names it.
TEST(ShownWeightsOn_cuda, AnArenasMemoryIsNotShown) {
  if (!why_no_gpu().empty()) GTEST_SKIP() << why_no_gpu();
  const std::string outcome = device::run_forked(1, [](int) {
    const DeviceSpec device{.backend = "cuda"};
    const std::unique_ptr<device::Ops> ops = make_ops(device, {.num_threads = 1});
    const device::MemoryDriver memory = open_memory(device);
    const int64_t bytes = memory.vmm->granularity_bytes();
    std::byte* const address = memory.vmm->reserve_addresses(bytes);
    const device::ExtentId extent = memory.vmm->create_extent(bytes).value();
    require(memory.vmm->map(address, extent) && memory.vmm->open_access(address, bytes), "no memory");
    const at::Tensor tensor = at::for_blob(address, {bytes})
                                  .options(at::TensorOptions(at::kByte).device(ops->device()))
                                  .target_device(ops->device())
                                  .make_tensor();
    require(device::show_memory(device, tensor).empty(), "it is shown");
    require(device::show_memory(device, at::empty({8}, at::kByte)).empty(), "the host's is shown");
    memory.vmm->unmap(address, bytes);
    memory.vmm->release_extent(extent);
    memory.vmm->free_addresses(address, bytes);
    const int64_t sizes[] = {4096, 0, 4096};  // bytes of an allocation, offset of a range in it, bytes of the range
    const std::string no_handle(64, 'x'), behind(reinterpret_cast<const char*>(sizes), sizeof sizes);
    for (const std::string& word : {std::string(), no_handle, no_handle + behind, std::string(88, '\0')}) {
      require(!device::map_memory(device, word).defined(), "a word that is none is mapped");
    }
    return std::string();
  })[0];
  EXPECT_EQ(outcome, "");
}

// Prints the milliseconds from "the weights are new" to "they are taken", and their parts.
TEST(ShownWeightsOn_cuda, AreCopiedFast) {
  if (!why_no_gpu().empty()) GTEST_SKIP() << why_no_gpu();
  model::ModelConfig config = model::qwen3_0_6b();  // shape of 4B
  config.num_layers = 36;
  config.hidden = 2560;
  config.num_heads = 32;
  config.mlp = 9728;
  config.tied_embeddings = true;
  constexpr int kVersions = 8;
  const auto shows = [&](Side& side) {
    const WeightStore store = store_of(config, side);
    draw(store);
    side.say(show_weights(store, side.device));
    double best = 1e9;
    for (int version = 0; version < kVersions; ++version) {
      draw(store);
      side.wait_for_device(store);
      require(side.hear() == "ready", "ready");
      const Clock::time_point begin = Clock::now();
      side.say("copy");
      side.say_checksums(store);
      const double sums_ms = ms_since(begin);
      require(side.hear() == "took", "took");
      const double ms = ms_since(begin);
      best = std::min(best, ms);
      fmt::print("version {}: {:.2f} ms; the sender's checksums after {:.2f}\n", version, ms, sums_ms);
    }
    fmt::print("{} GPU{}: {:.2f} GB from show to took in {:.2f} ms, {:.0f} GB/s\n", num_gpus(),
               num_gpus() > 1 ? "s" : "", static_cast<double>(store.bytes()) / 1e9, best,
               static_cast<double>(store.bytes()) / best / 1e6);
  };
  const auto maps = [&](Side& side) {
    WeightStore store = store_of(config, side);
    const std::string word = side.hear();
    const Clock::time_point mapping = Clock::now();
    ShownWeights shown = mapped(store, side, word);
    fmt::print("mapped in {:.2f} ms\n", ms_since(mapping));
    double sums_ms = 1e9;
    for (int version = 0; version < kVersions; ++version) {
      side.say("ready");
      require(side.hear() == "copy", "copy");
      const Clock::time_point begin = Clock::now();
      shown.copy();
      const double copy_ms = ms_since(begin);
      shown.finish(static_cast<uint64_t>(version), side.hear_checksums());
      side.say("took");
      const Clock::time_point summing = Clock::now();
      checksums(store, side.device);
      sums_ms = std::min(sums_ms, ms_since(summing));
      fmt::print("version {}: copied and summed in {:.2f} ms\n", version, copy_ms);
    }
    fmt::print("checksums alone: {:.2f} ms, {:.0f} GB/s\n", sums_ms,
               static_cast<double>(store.bytes()) / sums_ms / 1e6);
  };
  EXPECT_EQ(with_two(shows, maps), "");
}

}  // namespace
}  // namespace tandem::weights
