// The processes that score for a teacher, played by threads of this one: whoever answers, each sample gets its own
// numbers, none is lost with a process, and a run that nobody scores for ends in a line.
#include "scorer/scorers.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <thread>

#include "base/clock.h"
#include "mesh/channel_listener.h"
#include "mesh/local_socket.h"
#include "mesh/network.h"
#include "tandem/error.h"

namespace tandem::scorer {
namespace {

constexpr double kPatience = 20.0;
// The time between two rounds in which a run looks for a process that is gone: it does so every half second.
constexpr std::chrono::milliseconds kBetweenLooks{600};

// Returns a place on the network of this machine where nobody listens yet. By the name that a run is given it is found
// over the network alone.
struct Place {
  const int port = [] {
    const mesh::OwnedDescriptor listener = mesh::listen_at("127.0.0.1", 0);
    return mesh::port_of(listener);
  }();
  const Address of_scorer = address_of("127.0.0.1:" + std::to_string(port), "-");
  const Address of_run = address_of("localhost:" + std::to_string(port), "-");
};

// Returns an address that no other test has.
Address own_address(const std::string& name) {
  return address_of("test-" + std::to_string(getpid()) + "-" + name, "-");
}

// Stands for the log-probs of a sample: numbers that differ by token, by prompt and by the sequence that a token is in,
// so that an answer to another question is seen.
std::vector<float> numbers_of(const std::vector<int32_t>& prompt, const AskedSample& sample) {
  std::vector<float> numbers;
  for (size_t t = 0; t < sample.completion.size(); ++t) {
    const auto sequence =
        std::ranges::count_if(sample.sequence_begins, [&](int64_t begin) { return begin <= static_cast<int64_t>(t); });
    numbers.push_back(static_cast<float>(prompt[0]) * 1000.0F + static_cast<float>(sample.completion[t]) +
                      0.25F * static_cast<float>(sequence));
  }
  return numbers;
}

std::vector<rl::Sample> random_samples(uint32_t seed, size_t num_groups) {
  std::mt19937 random(seed);
  std::vector<rl::Sample> samples;
  for (size_t g = 0; g < num_groups; ++g) {
    const rl::SharedPrompt prompt =
        rl::make_prompt(std::vector<int32_t>(1 + random() % 9, static_cast<int32_t>(random() % 100)));
    for (uint64_t i = 0, n = 1 + random() % 4; i < n; ++i) {
      rl::Sample& sample = samples.emplace_back();
      sample.prompt = prompt;
      sample.group_id = g;
      for (uint64_t t = 0, length = random() % 12; t < length; ++t)
        sample.completion.push_back(static_cast<int32_t>(random() % 100));
      sample.loss_mask.assign(sample.completion.size(), 1);
      for (int64_t begin = static_cast<int64_t>(random() % 4); begin + 2 <= std::ssize(sample.completion);
           begin += 2 + static_cast<int64_t>(random() % 4))
        sample.sequence_begins.push_back(begin);
    }
  }
  return samples;
}

std::vector<const rl::Sample*> views(const std::vector<rl::Sample>& samples) {
  std::vector<const rl::Sample*> result;
  for (const rl::Sample& sample : samples) result.push_back(&sample);
  return result;
}

void expect_own_numbers(const std::vector<rl::Sample>& samples,
                        const std::optional<std::vector<std::vector<float>>>& scores) {
  ASSERT_TRUE(scores.has_value());
  ASSERT_EQ(scores->size(), samples.size());
  for (size_t i = 0; i < samples.size(); ++i) {
    const AskedSample asked = {samples[i].completion, samples[i].sequence_begins};
    EXPECT_EQ((*scores)[i], numbers_of(samples[i].prompt->tokens, asked)) << i;
  }
}

// A process that scores, as a thread. It leaves after `answers` answers to one who asks, and listens again.
class PlayedScorer {
 public:
  explicit PlayedScorer(const Address& address, int answers = 1 << 30, Welcome welcome = welcome_of("m"))
      : listener_(address.local_name(),
                  address.place
                      ? mesh::NetworkDoor{.address = address.place->host, .port = address.place->port, .secret = ""}
                      : mesh::NetworkDoor{},
                  kPatience),
        answers_(answers),
        welcome_(std::move(welcome)),
        thread_([this](const std::stop_token& end) { play(end); }) {}

  static Welcome welcome_of(const std::string& weights) {
    return {.model = "folder", .dtype = "float32", .weights = weights, .max_tokens = 30};
  }
  int num_answered() const { return num_answered_; }
  int num_met() const { return num_met_; }

 private:
  void play(const std::stop_token& end) {
    while (!end.stop_requested()) {
      if (const std::unique_ptr<mesh::Channel> channel = listener_.accept()) {
        ++num_met_;
        try {
          answer(*channel, end);
        } catch (const mesh::ChannelClosed&) {
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  void answer(mesh::Channel& channel, const std::stop_token& end) {
    for (int left = answers_; left > 0 && !end.stop_requested();) {
      const std::optional<std::string> frame = channel.receive(0.01);
      if (!frame) continue;
      const Message message = message_of(*frame);
      if (std::holds_alternative<Hello>(message)) channel.send(to_bytes(welcome_));
      const auto* const score = std::get_if<Score>(&message);
      if (score == nullptr) continue;
      Scored scored;
      for (const AskedGroup& group : score->groups) {
        for (const AskedSample& sample : group.samples) scored.logprobs.push_back(numbers_of(group.prompt, sample));
      }
      channel.send(to_bytes(Alive{}));
      channel.send(to_bytes(scored));
      ++num_answered_;
      --left;
    }
  }

  mesh::ChannelListener listener_;
  const int answers_;
  const Welcome welcome_;
  std::atomic<int> num_answered_ = 0, num_met_ = 0;
  std::jthread thread_;  // the last one: it uses the others
};

Scorers::Settings settings_of(std::vector<Address> addresses, double timeout_s = kPatience) {
  return {.addresses = std::move(addresses), .flag = "--opd-teacher-address", .secret = "", .timeout_s = timeout_s};
}

TEST(Scorers, ShareTheSamples) {
  const Address a = own_address("a"), b = own_address("b");
  const PlayedScorer one(a), two(b);
  Scorers scorers(settings_of({a, b}));
  for (const uint32_t seed : {1U, 2U, 3U}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const std::vector<rl::Sample> samples = random_samples(seed, 40);
    expect_own_numbers(samples, scorers.score(views(samples), 1.0));
  }
  EXPECT_GT(one.num_answered(), 0);
  EXPECT_GT(two.num_answered(), 0);
  EXPECT_EQ(one.num_met(), 1) << "a connection lasts";
  EXPECT_EQ(scorers.take_num_lost(), 0);
  expect_own_numbers({}, scorers.score({}, 1.0));
}

// Each of them leaves again and again, also with questions that it has not answered.
TEST(Scorers, WhatOneLeavesBehindAnotherScores) {
  const Address a = own_address("a"), b = own_address("b");
  const PlayedScorer one(a, 3), two(b, 5);
  Scorers scorers(settings_of({a, b}));
  const std::vector<rl::Sample> samples = random_samples(5, 120);
  expect_own_numbers(samples, scorers.score(views(samples), 1.0));
  EXPECT_GT(one.num_met(), 1);
  EXPECT_GT(scorers.take_num_lost(), 1);
  EXPECT_EQ(scorers.take_num_lost(), 0) << "they are counted once";
}

TEST(Scorers, TheOnlyOneIsWaitedFor) {
  const Address address = own_address("a");
  const PlayedScorer scorer(address, 4);
  Scorers scorers(settings_of({address}));
  const std::vector<rl::Sample> samples = random_samples(6, 30);
  expect_own_numbers(samples, scorers.score(views(samples), 1.0));
  EXPECT_GT(scorer.num_met(), 1);
}

TEST(Scorers, AreMissedInALineThatNamesThem) {
  const Address a = own_address("a"), b = own_address("b");
  const PlayedScorer one(a);
  try {
    Scorers scorers(settings_of({a, b}, 0.3));
    FAIL() << "nobody listens at the second";
  } catch (const EnvironmentError& error) {
    const std::string text = error.what();
    EXPECT_TRUE(text.starts_with("--opd-teacher-address: no process scores at " + b.text +
                                 " (nobody listens there); "
                                 "start `tandem scorer` there (waited for 0.3 s"))
        << text;
  }
}

// A container that is started again may lose its name for a while. The process of the test is found on this machine, by
// a name that no machine has.
TEST(Scorers, OneWhoseMachineHasNoNameForAWhileIsWaitedFor) {
  const Address lost = address_of("nobody.invalid:" + std::to_string(Place().port), "-");
  const Address here = {.text = lost.text, .place = std::nullopt};
  auto scorer = std::make_unique<PlayedScorer>(here);
  Scorers scorers(settings_of({lost}));
  scorer.reset();
  std::jthread back([&] {
    std::this_thread::sleep_for(2 * kBetweenLooks);
    scorer = std::make_unique<PlayedScorer>(here);
  });
  const std::vector<rl::Sample> samples = random_samples(17, 30);
  expect_own_numbers(samples, scorers.score(views(samples), 1.0));
}

TEST(Scorers, ANameThatNobodyKnowsIsAskedForUntilTheTimeout) {
  try {
    const Scorers scorers(settings_of({address_of("nobody.invalid:29700", "-")}, 1.0));
    FAIL() << "nobody is there";
  } catch (const EnvironmentError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("host nobody.invalid: this machine does not know the name"), std::string::npos) << text;
    EXPECT_NE(text.find("(waited for 1 s, --distributed-timeout-minutes)"), std::string::npos) << text;
  }
}

TEST(Scorers, ARunThatStopsDoesNotWait) {
  const Address address = own_address("a");
  auto scorer = std::make_unique<PlayedScorer>(address);
  Scorers::Settings settings = settings_of({address});
  settings.is_asked_to_stop = [] { return true; };
  Scorers scorers(std::move(settings));
  const std::vector<rl::Sample> samples = random_samples(7, 30);
  expect_own_numbers(samples, scorers.score(views(samples), 1.0));
  scorer.reset();
  EXPECT_FALSE(scorers.score(views(samples), 1.0).has_value());
}

TEST(Scorers, OfOneTeacherHaveOneModel) {
  const Address a = own_address("a"), b = own_address("b");
  const PlayedScorer one(a), two(b, 1 << 30, PlayedScorer::welcome_of("other"));
  try {
    Scorers scorers(settings_of({a, b}));
    FAIL() << "they differ";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("give all processes of a teacher the same model"), std::string::npos)
        << error.what();
  }
}

// A process is judged when it takes the place of another one too.
TEST(Scorers, OneThatComesBackWithOtherWeightsIsRefused) {
  const Address a = own_address("a"), b = own_address("b");
  const PlayedScorer one(a);
  auto two = std::make_unique<PlayedScorer>(b);
  Scorers scorers(settings_of({a, b}));
  two = nullptr;
  two = std::make_unique<PlayedScorer>(b, 1 << 30, PlayedScorer::welcome_of("other"));
  std::string said;
  for (uint32_t seed = 1; said.empty() && seed < 100; ++seed) {
    std::this_thread::sleep_for(kBetweenLooks);
    const std::vector<rl::Sample> samples = random_samples(seed, 40);
    try {
      expect_own_numbers(samples, scorers.score(views(samples), 1.0));
    } catch (const UserError& error) {
      said = error.what();
    }
  }
  EXPECT_EQ(said, "--opd-teacher-address " + b.text +
                      ": has folder (weights other in float32), and another process of this teacher, or the one before "
                      "it, folder (weights m in float32); give all processes of a teacher the same model and --dtype");
}

TEST(Scorers, AreTheTeacherThatIsKnown) {
  const Address address = own_address("a");
  const PlayedScorer scorer(address);
  Scorers::Settings settings = settings_of({address});
  settings.known = PlayedScorer::welcome_of("m");
  EXPECT_NO_THROW(const Scorers same(settings));
  settings.known->dtype = "bfloat16";
  EXPECT_THROW(const Scorers other(settings), UserError);
}

TEST(Scorers, AFrozenOneIsLost) {
  const Address a = own_address("a"), b = own_address("b");
  const PlayedScorer one(a);
  std::optional<mesh::Channel> held;
  std::optional<Scorers> scorers;
  {
    const mesh::LocalListener listener(b.local_name(), "?");
    std::jthread frozen([&] {
      std::optional<mesh::OwnedDescriptor> socket;
      while (!(socket = listener.accept())) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      held.emplace(std::move(*socket), kPatience);
      held->receive(kPatience);
      held->send(to_bytes(PlayedScorer::welcome_of("m")));
    });
    scorers.emplace(settings_of({a, b}, 1.0));
  }
  const std::vector<rl::Sample> samples = random_samples(8, 40);
  expect_own_numbers(samples, scorers->score(views(samples), 1.0));
  EXPECT_EQ(scorers->take_num_lost(), 1);
}

// The kernel takes connections for a process that listens and loads its weights, which says nothing until it has them.
TEST(Scorers, OneThatLoadsIsNotWaitedForWhereAnotherScores) {
  const Address near = own_address("a");
  const Place far;
  const PlayedScorer one(near);
  auto two = std::make_unique<PlayedScorer>(far.of_scorer);
  Scorers scorers(settings_of({near, far.of_run}));
  two.reset();
  std::optional<mesh::OwnedDescriptor> loading = mesh::listen_at("127.0.0.1", far.port);
  for (const uint32_t seed : {9U, 10U, 11U}) {
    std::this_thread::sleep_for(kBetweenLooks);
    const base::Clock::time_point begin = base::Clock::now();
    const std::vector<rl::Sample> samples = random_samples(seed, 40);
    expect_own_numbers(samples, scorers.score(views(samples), 1.0));
    EXPECT_LT(base::seconds_since(begin), kPatience / 2);
  }
  EXPECT_EQ(scorers.take_num_lost(), 1);
  loading.reset();
  two = std::make_unique<PlayedScorer>(far.of_scorer);
  for (uint32_t seed = 12; two->num_answered() == 0 && seed < 100; ++seed) {
    std::this_thread::sleep_for(kBetweenLooks);
    const std::vector<rl::Sample> samples = random_samples(seed, 40);
    expect_own_numbers(samples, scorers.score(views(samples), 1.0));
  }
  EXPECT_GT(two->num_answered(), 0) << "it has loaded";
}

TEST(Scorers, ARunWhoseOnlyOneLoadsCanBeStopped) {
  const Place place;
  auto scorer = std::make_unique<PlayedScorer>(place.of_scorer);
  Scorers::Settings settings = settings_of({place.of_run});
  std::optional<base::Clock::time_point> begin;
  settings.is_asked_to_stop = [&] { return begin && base::seconds_since(*begin) > 1.0; };
  Scorers scorers(std::move(settings));
  scorer.reset();
  const mesh::OwnedDescriptor loading = mesh::listen_at("127.0.0.1", place.port);
  const std::vector<rl::Sample> samples = random_samples(13, 30);
  begin = base::Clock::now();
  EXPECT_FALSE(scorers.score(views(samples), 1.0).has_value());
  EXPECT_LT(base::seconds_since(*begin), kPatience / 2);
}

// One that has said that it is there and then says nothing, as a stopped process does, may only be slow: the run gives
// it the time that a step has after a signal.
TEST(Scorers, ARunWhoseOnlyOneIsSilentCanAbandonIt) {
  const Address address = own_address("mute");
  const mesh::LocalListener listener(address.local_name(), "?");
  const std::jthread mute([&](const std::stop_token& end) {
    std::optional<mesh::OwnedDescriptor> socket;
    while (!(socket = listener.accept())) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    mesh::Channel channel(std::move(*socket), kPatience);
    channel.receive(kPatience);
    channel.send(to_bytes(PlayedScorer::welcome_of("m")));
    while (!end.stop_requested()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  });
  Scorers::Settings settings = settings_of({address});
  const base::Clock::time_point begin = base::Clock::now();
  settings.is_asked_to_stop = [] { return true; };
  settings.abandon = [&] { return base::seconds_since(begin) > 1.0; };
  Scorers scorers(std::move(settings));
  const std::vector<rl::Sample> samples = random_samples(17, 30);
  EXPECT_FALSE(scorers.score(views(samples), 1.0).has_value());
  EXPECT_GT(base::seconds_since(begin), 1.0) << "it was ready";
  EXPECT_LT(base::seconds_since(begin), kPatience / 2);
}

// A process that computes reads nothing, and its socket is full of the next question.
TEST(Scorers, OneThatReadsNothingIsNotWaitedForWhereAnotherScores) {
  constexpr size_t kTokens = 100'000;  // 400 kB: more than a socket takes
  const auto with_long_pieces = [] {
    Welcome welcome = PlayedScorer::welcome_of("m");
    welcome.max_tokens = kTokens + 10;
    return welcome;
  };
  const Address a = own_address("a"), b = own_address("b");
  const PlayedScorer one(a, 1 << 30, with_long_pieces());
  std::atomic<bool> others_scored = false;
  const mesh::LocalListener listener(b.local_name(), "?");
  const std::jthread busy([&] {
    std::optional<mesh::OwnedDescriptor> socket;
    while (!(socket = listener.accept())) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    mesh::Channel channel(std::move(*socket), kPatience);
    channel.receive(kPatience);
    channel.send(to_bytes(with_long_pieces()));
    const base::Clock::time_point begin = base::Clock::now();
    while (!others_scored && base::seconds_since(begin) < kPatience / 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      others_scored = one.num_answered() >= 4;
    }
  });
  Scorers scorers(settings_of({b, a}));
  std::vector<rl::Sample> samples(8);
  for (size_t i = 0; i < samples.size(); ++i) {
    samples[i].prompt = rl::make_prompt({static_cast<int32_t>(i)});
    samples[i].group_id = i;
    samples[i].completion.assign(kTokens, 7);
    samples[i].loss_mask.assign(kTokens, 1);
  }
  expect_own_numbers(samples, scorers.score(views(samples), 1.0));
  EXPECT_TRUE(others_scored) << "they wait for the one that reads nothing";
}

TEST(ScorerAddress, IsANameOrAPlace) {
  EXPECT_EQ(address_of("gpu1:29700", "--listen").place->port, 29700);
  EXPECT_FALSE(address_of("math-7b", "--listen").place.has_value());
  EXPECT_NE(address_of("a", "--listen").local_name(), address_of("b", "--listen").local_name());
  for (const char* const bad : {"", "a b", "a/b", "host:", "host:0", "host:70000", "tcp://host:1", "a.b",
                                "123456789012345678901234567890123"}) {
    EXPECT_THROW(address_of(bad, "--listen"), UserError) << bad;
  }
  for (const char* const number : {"29701", "7"}) {
    try {
      address_of(number, "--listen");
      ADD_FAILURE() << number;
    } catch (const UserError& error) {
      EXPECT_EQ(std::string(error.what()), std::string("--listen ") + number +
                                               ": is a number alone; give HOST:" + number +
                                               " with the name or address of the machine, or a name with a letter for "
                                               "a process on the same machine");
    }
  }
  EXPECT_FALSE(address_of("7b", "--listen").place.has_value());
  EXPECT_THROW(check_guarded(address_of("h:1", "-"), false, false, "--listen"), UserError);
  EXPECT_NO_THROW(check_guarded(address_of("h:1", "-"), true, false, "--listen"));
  EXPECT_NO_THROW(check_guarded(address_of("h:1", "-"), false, true, "--listen"));
  EXPECT_NO_THROW(check_guarded(address_of("h", "-"), false, false, "--listen"));
}

TEST(ScorerMessages, OtherBytesAreNoMessage) {
  const std::string bytes =
      to_bytes(Score{.temperature = 0.5, .groups = {{.prompt = {1, 2}, .samples = {{{3, 4, 5}, {1}}, {}}}}});
  const Message message = message_of(bytes);
  const Score& score = std::get<Score>(message);
  EXPECT_EQ(score.temperature, 0.5);
  EXPECT_EQ(score.groups.at(0).samples.at(0).completion, (std::vector<int32_t>{3, 4, 5}));
  EXPECT_EQ(score.groups.at(0).samples.at(0).sequence_begins, std::vector<int64_t>{1});
  EXPECT_TRUE(score.groups.at(0).samples.at(1).completion.empty());
  for (size_t end = 0; end < bytes.size(); ++end)
    EXPECT_THROW(message_of(std::string_view(bytes).substr(0, end)), EnvironmentError) << end;
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    EXPECT_THROW(message_of(changed), EnvironmentError) << at;
  }
}

TEST(ScorerMessages, TheDigestTellsTokensApart) {
  EXPECT_EQ(digest_of({"a", "b", "c"}, 2), digest_of({"a", "b"}, 2));
  EXPECT_NE(digest_of({"a", "b"}, 2), digest_of({"ab", ""}, 2));
  EXPECT_NE(digest_of({"a", "b"}, 2), digest_of({"a", "c"}, 2));
}

}  // namespace
}  // namespace tandem::scorer
