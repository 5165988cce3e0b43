// Tests of ranks that are threads: the conformance tests of every communicator, and the errors that only this one
// finds.
#include "tests/device/ranks/thread_communicator.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/device/ranks/communicator_conformance.h"

namespace tandem::device {
namespace {

std::vector<std::string> run_threads(int size, const Body& body) {
  std::vector<std::unique_ptr<Communicator>> ranks = thread_communicators(size);
  std::vector<std::string> outcomes(ranks.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back([&, rank] {
      outcomes[rank] = outcome_of(body, *ranks[rank]);
      ranks[rank].reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

std::vector<RankKind> thread_kinds() {
  std::vector<RankKind> kinds;
  for (int size = 1; size <= 8; ++size) kinds.push_back({.name = "threads", .size = size, .run = run_threads});
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Threads, CommunicatorConformance, testing::ValuesIn(thread_kinds()), rank_kind_name);

TEST(ThreadCommunicator, ListsThatDoNotFitAreABug) {
  const std::vector<std::string> outcomes = run_threads(2, [](Communicator& ranks) {
    const at::Tensor mine = at::empty({ranks.rank() == 0 ? 3 : 4}, at::kByte);
    ranks.start_exchange({{mine}, {mine}}, {{mine}, {mine}})->wait();
  });
  for (const std::string& outcome : outcomes) EXPECT_NE(outcome.find("do not fit"), std::string::npos) << outcome;
}

}  // namespace
}  // namespace tandem::device
