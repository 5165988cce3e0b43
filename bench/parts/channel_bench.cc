// What a connection to a process on another machine costs: a channel (mesh/channel) over loopback, as new weights go
// through it, without a secret and with one, alternately in one run. Prints GB/s, which other work on the machine slows
// down, and the processor time of both ends in ns a byte, which it hardly does; a line a round, then the medians. Needs
// no torch.
//
//   cmake --preset release && cmake --build build/release --target channel_bench
//   build/release/bench/channel_bench [ROUNDS]
#include <poll.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "mesh/channel_connector.h"
#include "mesh/channel_listener.h"

namespace tandem::mesh {
namespace {

constexpr size_t kPieceBytes = size_t{64} << 20;  // at most --update-weight-buffer-size
constexpr int kNumPieces = 16;
constexpr double kPatience = 60.0;

struct Ends {
  std::unique_ptr<Channel> sends, receives;
};

Ends connected(const std::string& secret) {
  ChannelListener listener("tandem channel bench " + std::to_string(getpid()),
                           {.address = "127.0.0.1", .port = 0, .secret = secret}, kPatience);
  auto other =
      std::async(std::launch::async, [&] { return connect_channel("127.0.0.1", listener.port(), secret, kPatience); });
  Ends ends;
  while (!(ends.sends = listener.accept())) {
    std::vector<pollfd> polled;
    for (const int descriptor : listener.descriptors()) polled.push_back({descriptor, POLLIN, 0});
    poll(polled.data(), polled.size(), 10);
  }
  ends.receives = other.get();
  return ends;
}

struct Cost {
  double gigabytes_per_second = 0.0, cpu_ns_per_byte = 0.0;
};

double cpu_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

Cost cost_of(Ends& ends, const std::vector<std::byte>& piece, std::vector<std::byte>& into) {
  const base::Clock::time_point begin = base::Clock::now();
  const double cpu_begin = cpu_seconds();
  std::jthread receiver([&] {
    for (int i = 0; i < kNumPieces; ++i) {
      while (!ends.receives->receive(1.0)) {
      }
      ends.receives->receive_bytes(into);
    }
    ends.receives->send("all");
  });
  for (int i = 0; i < kNumPieces; ++i) {
    ends.sends->send("a piece follows");
    ends.sends->send_bytes(piece);
  }
  while (!ends.sends->receive(1.0)) {
  }
  receiver.join();
  const auto gigabytes = 1e-9 * static_cast<double>(kPieceBytes * kNumPieces);
  const Cost cost = {.gigabytes_per_second = gigabytes / base::seconds_since(begin),
                     .cpu_ns_per_byte = (cpu_seconds() - cpu_begin) / gigabytes};
  TANDEM_CHECK(into == piece);
  return cost;
}

void measure(int num_rounds) {
  std::vector<std::byte> piece(kPieceBytes), into(kPieceBytes);
  for (size_t i = 0; i < piece.size(); ++i) piece[i] = static_cast<std::byte>(i * 2654435761U >> 13);
  Ends plain = connected(""), secret = connected("a secret of thirty-two letters..");
  std::vector<Cost> without, with;
  const auto print = [](const char* what, const Cost& open, const Cost& secured) {
    std::printf("%s: without a secret %.2f GB/s and %.2f ns/byte, with one %.2f GB/s and %.2f ns/byte\n", what,
                open.gigabytes_per_second, open.cpu_ns_per_byte, secured.gigabytes_per_second, secured.cpu_ns_per_byte);
    std::fflush(stdout);
  };
  for (int round = 0; round < num_rounds; ++round) {
    without.push_back(cost_of(plain, piece, into));
    with.push_back(cost_of(secret, piece, into));
    print("round", without.back(), with.back());
  }
  const auto median = [](const std::vector<Cost>& costs) {
    const auto middle = [&](double Cost::*field) {
      std::vector<double> values;
      for (const Cost& cost : costs) values.push_back(cost.*field);
      std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
      return values[values.size() / 2];
    };
    return Cost{.gigabytes_per_second = middle(&Cost::gigabytes_per_second),
                .cpu_ns_per_byte = middle(&Cost::cpu_ns_per_byte)};
  };
  print("median", median(without), median(with));
}

}  // namespace
}  // namespace tandem::mesh

int main(int argc, char** argv) {
  try {
    tandem::mesh::measure(argc > 1 ? std::max(std::atoi(argv[1]), 1) : 9);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "channel_bench: %s\n", error.what());
    return 1;
  }
}
