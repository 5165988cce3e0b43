#include "tests/device/ranks/communicator_conformance.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>

#include <bit>
#include <chrono>
#include <cstring>
#include <random>
#include <stdexcept>
#include <thread>

namespace tandem::device {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

void check(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

size_t at_rank(int rank) { return static_cast<size_t>(rank); }

std::mt19937_64 generator_of(std::initializer_list<uint64_t> numbers) {
  std::seed_seq sequence(numbers.begin(), numbers.end());
  return std::mt19937_64(sequence);
}

uint64_t draw_seed() {
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

at::Tensor empty(int64_t count, at::ScalarType dtype) { return at::empty({count}, dtype); }

void fill(const at::Tensor& tensor, std::mt19937_64& random) {
  auto* const bytes = static_cast<uint8_t*>(tensor.data_ptr());
  uint64_t word = random();
  for (size_t i = 0; i < tensor.nbytes(); ++i) {
    word = word * 6'364'136'223'846'793'005U + 1'442'695'040'888'963'407U;
    bytes[i] = static_cast<uint8_t>(word >> 56U);
  }
}

bool are_same_bytes(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor a_host = a.cpu(), b_host = b.cpu();
  return a.nbytes() == b.nbytes() &&
         (a.nbytes() == 0 || std::memcmp(a_host.const_data_ptr(), b_host.const_data_ptr(), a.nbytes()) == 0);
}

// Returns the tensors that rank `from` sends to rank `to` in an exchange, drawn on the host.
std::vector<at::Tensor> drawn_list(uint64_t seed, int exchange, int from, int to) {
  constexpr std::array kDtypes = {at::kBFloat16, at::kByte, at::kFloat, at::kLong};
  std::mt19937_64 random =
      generator_of({seed, static_cast<uint64_t>(exchange), static_cast<uint64_t>(from), static_cast<uint64_t>(to)});
  std::vector<at::Tensor> tensors(random() % 4);
  for (at::Tensor& tensor : tensors) {
    const uint64_t most = random() % 8 == 0 ? 100'000 : random() % 4 == 0 ? 1 : 1'000;
    tensor = empty(static_cast<int64_t>(random() % (most + 1)), kDtypes[random() % kDtypes.size()]);
    fill(tensor, random);
  }
  return tensors;
}

struct Begun {
  TensorLists from;
  std::unique_ptr<Communicator::Exchange> exchange;
};

Begun begin_drawn(Communicator& ranks, at::Device device, uint64_t seed, int number) {
  TensorLists to(at_rank(ranks.size())), from(at_rank(ranks.size()));
  for (int rank = 0; rank < ranks.size(); ++rank) {
    if (rank == ranks.rank()) continue;
    for (const at::Tensor& sent : drawn_list(seed, number, ranks.rank(), rank)) {
      to[at_rank(rank)].push_back(sent.to(device));
    }
    for (const at::Tensor& received : drawn_list(seed, number, rank, ranks.rank())) {
      from[at_rank(rank)].push_back(at::empty({received.numel()}, received.options().device(device)));
    }
  }
  Begun begun{.from = from, .exchange = nullptr};
  begun.exchange = ranks.start_exchange(std::move(to), std::move(from));
  return begun;
}

void check_drawn(Communicator& ranks, uint64_t seed, int number, Begun& begun) {
  begun.exchange->wait();
  for (int rank = 0; rank < ranks.size(); ++rank) {
    if (rank == ranks.rank()) continue;
    const std::vector<at::Tensor> expected = drawn_list(seed, number, rank, ranks.rank());
    for (size_t i = 0; i < expected.size(); ++i) {
      check(are_same_bytes(begun.from[at_rank(rank)][i], expected[i]),
            fmt::format("seed {}, exchange {}: tensor {} of rank {} is not what it sent", seed, number, i, rank));
    }
  }
}

// Returns rows of floats of very different sizes, and signed zeros.
std::vector<float> drawn_rows(uint64_t seed, int rank, int64_t count) {
  std::mt19937_64 random = generator_of({seed, static_cast<uint64_t>(rank)});
  std::vector<float> numbers(static_cast<size_t>(count));
  for (float& number : numbers) {
    const auto digits = static_cast<float>(static_cast<int64_t>(random() % 2001) - 1000);
    number = random() % 8 == 0 ? -0.0F : std::ldexp(digits, static_cast<int>(random() % 40) - 20);
  }
  return numbers;
}

at::Tensor tensor_of(std::span<const float> numbers, at::Device device) {
  at::Tensor tensor = empty(std::ssize(numbers), at::kFloat);
  if (!numbers.empty()) std::memcpy(tensor.data_ptr(), numbers.data(), numbers.size_bytes());
  return tensor.to(device);
}

// Returns the sum of `mine` over ranks, in the way in which the trainer adds gradients up: each rank owns a part, gets
// it from all, adds and gives it to all. It adds in rank order or, as a ring does, beginning after the owner.
std::vector<float> summed(Communicator& ranks, at::Device device, std::span<const float> mine, bool as_a_ring) {
  const int64_t size = ranks.size(), count = std::ssize(mine);
  const auto begin = [&](int64_t rank) { return count * rank / size; };
  const auto length = [&](int64_t rank) { return begin(rank + 1) - begin(rank); };
  TensorLists to(at_rank(ranks.size())), from(at_rank(ranks.size()));
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const at::Tensor part =
        tensor_of(mine.subspan(static_cast<size_t>(begin(rank)), static_cast<size_t>(length(rank))), device);
    to[at_rank(rank)].push_back(part);
    from[at_rank(rank)].push_back(rank == ranks.rank() ? part : at::empty({length(ranks.rank())}, part.options()));
  }
  ranks.start_exchange(to, from)->wait();
  const int first = as_a_ring ? (ranks.rank() + 1) % ranks.size() : 0;
  const at::Tensor own = empty(length(ranks.rank()), at::kFloat);
  std::vector<at::Tensor> parts;
  for (int i = 0; i < ranks.size(); ++i) parts.push_back(from[at_rank((first + i) % ranks.size())][0].cpu());
  for (int64_t i = 0; i < own.numel(); ++i) {
    float sum = parts[0].const_data_ptr<float>()[i];
    for (size_t k = 1; k < parts.size(); ++k) sum += parts[k].const_data_ptr<float>()[i];
    own.mutable_data_ptr<float>()[i] = sum;
  }
  const at::Tensor whole = empty(count, at::kFloat).to(device);
  whole.narrow(0, begin(ranks.rank()), own.numel()).copy_(own);
  TensorLists pieces;
  for (int64_t rank = 0; rank < size; ++rank) pieces.push_back({whole.narrow(0, begin(rank), length(rank))});
  all_gather(ranks, pieces);
  const at::Tensor host = whole.cpu();
  return {host.const_data_ptr<float>(), host.const_data_ptr<float>() + count};
}

bool are_same_bits(std::span<const float> a, std::span<const float> b) {
  return std::ranges::equal(a, b,
                            [](float x, float y) { return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y); });
}

constexpr int64_t kRows = 7, kRowLength = 131;

// Returns whether each row has the same sum alone and among the others.
bool are_rows_independent(Communicator& ranks, at::Device device, uint64_t seed, bool as_a_ring) {
  const std::vector<float> mine = drawn_rows(seed, ranks.rank(), kRows * kRowLength);
  const std::vector<float> batch = summed(ranks, device, mine, as_a_ring);
  bool are_same = true;
  for (size_t row = 0; row < kRows; ++row) {
    const std::span alone = std::span(mine).subspan(row * kRowLength, kRowLength);
    are_same &=
        are_same_bits(summed(ranks, device, alone, as_a_ring), std::span(batch).subspan(row * kRowLength, kRowLength));
  }
  return are_same;
}

std::vector<float> sum_in_rank_order(uint64_t seed, int size) {
  std::vector<float> sum = drawn_rows(seed, 0, kRows * kRowLength);
  for (int rank = 1; rank < size; ++rank) {
    const std::vector<float> theirs = drawn_rows(seed, rank, kRows * kRowLength);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += theirs[i];
  }
  return sum;
}

// Begins an exchange of one tensor to and from every rank.
std::unique_ptr<Communicator::Exchange> begin_round(Communicator& ranks, at::Device device, int64_t bytes) {
  TensorLists to(at_rank(ranks.size())), from(at_rank(ranks.size()));
  for (int rank = 0; rank < ranks.size(); ++rank) {
    to[at_rank(rank)].push_back(empty(bytes, at::kByte).to(device));
    from[at_rank(rank)].push_back(empty(bytes, at::kByte).to(device));
  }
  return ranks.start_exchange(std::move(to), std::move(from));
}

// Waits until the received tensors are there for the host.
void wait_on_host(Communicator& ranks, Communicator::Exchange& exchange, at::Device device) {
  exchange.wait();
  if (device == at::kCPU) return;
  empty(1, at::kByte).to(device).cpu();
  // An exchange that ended by itself is told from one that was ended.
  ranks.start_exchange(TensorLists(at_rank(ranks.size())), TensorLists(at_rank(ranks.size())))->wait();
}

std::string last_rank(const RankKind& kind) { return fmt::format("rank {}", kind.size - 1); }

}  // namespace

std::string outcome_of(const Body& body, Communicator& ranks) {
  try {
    body(ranks);
    return "";
  } catch (const PeerLost& error) {
    return fmt::format("PeerLost: {}", error.what());
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.empty() ? "an exception" : text;
  }
}

void CommunicatorConformance::SetUp() {
  const std::string why = GetParam().why_none();
  if (!why.empty()) GTEST_SKIP() << why;
}

void CommunicatorConformance::expect_right(const Body& body) {
  const std::vector<std::string> outcomes = GetParam().run(GetParam().size, body);
  for (size_t rank = 0; rank < outcomes.size(); ++rank) EXPECT_EQ(outcomes[rank], "") << "on rank " << rank;
}

void CommunicatorConformance::expect_death_noticed(const std::string& operation, const Body& body) {
  if (!GetParam().are_processes || GetParam().size == 1) GTEST_SKIP() << "no rank can be killed";
  const auto start = std::chrono::steady_clock::now();
  const std::vector<std::string> outcomes = GetParam().run(GetParam().size, [&](Communicator& ranks) {
    std::thread killer;
    if (ranks.rank() == ranks.size() - 1) {
      killer = std::thread([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        raise(SIGKILL);
      });
    }
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < std::chrono::seconds(20)) body(ranks);
    if (killer.joinable()) killer.join();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
  for (size_t rank = 0; rank + 1 < outcomes.size(); ++rank) {
    EXPECT_THAT(outcomes[rank], StartsWith("PeerLost: ")) << operation << " on rank " << rank;
    if (GetParam().device == at::kCPU) {
      EXPECT_THAT(outcomes[rank], HasSubstr(last_rank(GetParam()))) << operation << " on rank " << rank;
    }
    EXPECT_EQ(outcomes[rank].find('\n'), std::string::npos) << outcomes[rank];
  }
  EXPECT_EQ(outcomes.back(), "killed");
}

TEST_P(CommunicatorConformance, KnowsItsRankAndSize) {
  expect_right([size = GetParam().size, device = GetParam().device](Communicator& ranks) {
    check(ranks.size() == size && ranks.rank() >= 0 && ranks.rank() < size, "the rank or the size is wrong");
    TensorLists numbers;
    for (int rank = 0; rank < size; ++rank) {
      numbers.push_back({at::full({1}, ranks.rank(), at::TensorOptions(at::kInt).device(device))});
    }
    all_gather(ranks, numbers);
    for (int rank = 0; rank < size; ++rank) {
      check(numbers[at_rank(rank)][0].cpu().item<int>() == rank, "two ranks have one number");
    }
  });
}

TEST_P(CommunicatorConformance, EveryExchangeDeliversExactly) {
  const uint64_t seed = draw_seed();
  expect_right([device = GetParam().device, seed](Communicator& ranks) {
    std::mt19937_64 random = generator_of({seed});  // the same on all ranks
    for (int number = 0; number < 12;) {
      std::vector<Begun> under_way;
      const int first = number;
      for (uint64_t left = 1 + random() % 4; left > 0; --left) {
        under_way.push_back(begin_drawn(ranks, device, seed, number++));
      }
      // One rank is late.
      if (static_cast<int>(random() % 8) == ranks.rank()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      for (size_t i = 0; i < under_way.size(); ++i) check_drawn(ranks, seed, first + static_cast<int>(i), under_way[i]);
    }
  });
}

TEST_P(CommunicatorConformance, AnExchangeThatIsDestroyedIsWaitedFor) {
  expect_right([device = GetParam().device](Communicator& ranks) {
    for (int i = 0; i < 3; ++i) begin_round(ranks, device, 10'000).reset();
    const uint64_t seed = 5;
    Begun begun = begin_drawn(ranks, device, seed, 0);
    check_drawn(ranks, seed, 0, begun);
  });
}

TEST_P(CommunicatorConformance, GathersPartsOfOneTensorInPlace) {
  expect_right([device = GetParam().device](Communicator& ranks) {
    const int64_t size = ranks.size(), whole_length = size * (size + 1) / 2 * 1'000;
    const auto begin = [](int64_t rank) { return rank * (rank + 1) / 2 * 1'000; };  // rank r has (r + 1) thousand
    const at::Tensor host = empty(whole_length, at::kFloat);
    for (int64_t i = 0; i < whole_length; ++i) host.mutable_data_ptr<float>()[i] = -1.0F;
    for (int64_t i = begin(ranks.rank()); i < begin(ranks.rank() + 1); ++i) {
      host.mutable_data_ptr<float>()[i] = static_cast<float>(i);
    }
    const at::Tensor whole = host.to(device);
    TensorLists parts;
    for (int64_t rank = 0; rank < size; ++rank) {  // two tensors each
      const int64_t middle = (begin(rank) + begin(rank + 1)) / 2;
      parts.push_back(
          {whole.narrow(0, begin(rank), middle - begin(rank)), whole.narrow(0, middle, begin(rank + 1) - middle)});
    }
    all_gather(ranks, parts);
    const at::Tensor result = whole.cpu();
    for (int64_t i = 0; i < whole_length; ++i) {
      check(result.const_data_ptr<float>()[i] == static_cast<float>(i), fmt::format("element {} is wrong", i));
    }
  });
}

TEST_P(CommunicatorConformance, GathersTextsNumbersAndYes) {
  if (GetParam().device != at::kCPU) GTEST_SKIP() << "for communicators of the CPU";
  expect_right([](Communicator& ranks) {
    const auto text_of = [](int rank) {
      return rank % 2 == 0 ? std::string() : std::string(rank * 1'000, 'a') + "\0é";
    };
    for (int round = 0; round < 3; ++round) {
      const std::vector<std::string> texts = all_gather_text(ranks, text_of(ranks.rank()));
      check(std::ssize(texts) == ranks.size(), "a text is missing");
      for (int rank = 0; rank < ranks.size(); ++rank) check(texts[at_rank(rank)] == text_of(rank), "a wrong text");
    }
    for (const std::string& text : all_gather_text(ranks, "")) check(text.empty(), "an empty text is not");
    check(!any_of(ranks, false), "nobody said yes");
    for (int rank = 0; rank < ranks.size(); ++rank) check(any_of(ranks, rank == ranks.rank()), "one said yes");
  });
}

TEST_P(CommunicatorConformance, GivesATextOfAnyRankToAll) {
  if (GetParam().device != at::kCPU) GTEST_SKIP() << "for communicators of the CPU";
  expect_right([](Communicator& ranks) {
    for (int from = 0; from < ranks.size(); ++from) {
      for (const size_t length : {size_t{0}, size_t{1}, size_t{300'000}}) {
        const std::string text(length, static_cast<char>('a' + from));
        check(broadcast_text(ranks, from, ranks.rank() == from ? text : "ignored") == text, "a wrong text");
      }
    }
  });
}

TEST_P(CommunicatorConformance, SumsInRankOrderAreTheSameAloneAndInBatches) {
  const uint64_t seed = draw_seed();
  expect_right([device = GetParam().device, seed](Communicator& ranks) {
    const std::vector<float> mine = drawn_rows(seed, ranks.rank(), kRows * kRowLength);
    check(are_same_bits(summed(ranks, device, mine, false), sum_in_rank_order(seed, ranks.size())),
          fmt::format("seed {}: not the sum in rank order", seed));
    check(are_rows_independent(ranks, device, seed, false), fmt::format("seed {}: a row depends on others", seed));
    // The check would find a sum in another order: beyond two ranks an order matters.
    check(are_rows_independent(ranks, device, seed, true) == (ranks.size() <= 2),
          fmt::format("seed {}: a ring's sum is not found", seed));
  });
}

TEST_P(CommunicatorConformance, AbortEndsAWaitOnEveryRank) {
  if (GetParam().size == 1) GTEST_SKIP() << "nobody to wait for";
  const auto start = std::chrono::steady_clock::now();
  const std::vector<std::string> outcomes = GetParam().run(GetParam().size, [&](Communicator& ranks) {
    wait_on_host(ranks, *begin_round(ranks, GetParam().device, 100), GetParam().device);
    if (ranks.rank() == ranks.size() - 1) {  // takes no part
      std::this_thread::sleep_for(std::chrono::milliseconds(700));
      return;
    }
    std::thread stopper;
    if (ranks.rank() == 0) {
      stopper = std::thread([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        ranks.abort();
      });
    }
    const std::string outcome = outcome_of(
        [&](Communicator&) {
          wait_on_host(ranks, *begin_round(ranks, GetParam().device, 1'000'000), GetParam().device);
        },
        ranks);
    if (stopper.joinable()) stopper.join();
    const std::string again =
        outcome_of([&](Communicator&) { begin_round(ranks, GetParam().device, 1)->wait(); }, ranks);
    check(again.starts_with("PeerLost: "), "after abort(), an exchange began: " + again);
    check(outcome.empty(), outcome);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
  for (size_t rank = 0; rank + 1 < outcomes.size(); ++rank) EXPECT_THAT(outcomes[rank], StartsWith("PeerLost: "));
  EXPECT_THAT(outcomes[0], HasSubstr("abort"));
}

TEST_P(CommunicatorConformance, ARankThatEndsEarlyIsNamed) {
  if (GetParam().size == 1 || GetParam().device != at::kCPU) GTEST_SKIP() << "for several ranks of the CPU";
  const std::vector<std::string> outcomes = GetParam().run(GetParam().size, [&](Communicator& ranks) {
    begin_round(ranks, GetParam().device, 100)->wait();
    if (ranks.rank() == ranks.size() - 1) return;
    begin_round(ranks, GetParam().device, 100)->wait();
  });
  for (size_t rank = 0; rank + 1 < outcomes.size(); ++rank) {
    EXPECT_THAT(outcomes[rank], StartsWith("PeerLost: "));
    EXPECT_THAT(outcomes[rank], HasSubstr(last_rank(GetParam())));
  }
  EXPECT_EQ(outcomes.back(), "");
}

TEST_P(CommunicatorConformance, RanksMayEndOneAfterTheOther) {
  expect_right([device = GetParam().device](Communicator& ranks) {
    for (int i = 0; i < 3; ++i) wait_on_host(ranks, *begin_round(ranks, device, 100'000), device);
    std::this_thread::sleep_for(std::chrono::milliseconds(20 * ranks.rank()));
  });
}

TEST_P(CommunicatorConformance, DeathIsNoticedInAnExchange) {
  expect_death_noticed("exchange", [device = GetParam().device](Communicator& ranks) {
    const auto first = begin_round(ranks, device, 1'000'000), second = begin_round(ranks, device, 10);
    wait_on_host(ranks, *first, device);
    wait_on_host(ranks, *second, device);
  });
}

TEST_P(CommunicatorConformance, DeathIsNoticedInAllGather) {
  expect_death_noticed("all_gather", [device = GetParam().device](Communicator& ranks) {
    const at::Tensor whole = empty(100'000 * ranks.size(), at::kByte).to(device);
    TensorLists parts;
    for (int rank = 0; rank < ranks.size(); ++rank) parts.push_back({whole.narrow(0, 100'000 * rank, 100'000)});
    all_gather(ranks, parts);
    wait_on_host(ranks, *begin_round(ranks, device, 1), device);
  });
}

TEST_P(CommunicatorConformance, DeathIsNoticedInAllGatherText) {
  if (GetParam().device != at::kCPU) GTEST_SKIP() << "for communicators of the CPU";
  expect_death_noticed("all_gather_text", [](Communicator& ranks) { all_gather_text(ranks, "a text"); });
}

TEST_P(CommunicatorConformance, DeathIsNoticedInAnyOf) {
  if (GetParam().device != at::kCPU) GTEST_SKIP() << "for communicators of the CPU";
  expect_death_noticed("any_of", [](Communicator& ranks) { any_of(ranks, false); });
}

}  // namespace tandem::device
