// What the conductor and a worker say comes out as it went in, and nothing else is taken for a message.
#include "sampling/worker_messages.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/wire.h"
#include "tandem/error.h"

namespace tandem::sampling {
namespace {

std::vector<WorkerMessage> one_of_each() {
  Task task{.rollout = 3, .index = 4, .line = {}};
  task.line.record.prompt = base::parse_json(R"([{"role": "user", "content": "2+2"}])", "a test");
  task.line.record.label = "4";
  task.line.prompt = std::make_shared<const rl::Prompt>(rl::Prompt{.tokens = {1, 2, 3}, .text = "2+2", .label = "4"});
  return {
      Hello{.facts = "facts", .weight_hash = "hash", .process = 7, .machine = "here"},
      Welcome{.longest_prompt = 1,
              .eval_context_tokens = 2,
              .eval_sequences = 3,
              .line_types = {"math"},
              .eval_line_types = {"a", "b"},
              .user_output = "a file",
              .shown_trained = {std::string("\0word", 5), "another"},
              .shown_base = {"word"}},
      Refused{"why"},
      Prepared{.maps_weights = true},
      Weights{
          .is_base = true, .part = 1, .tensor = 1, .first_byte = 2, .num_bytes = 3, .checksum = "sum", .version = 4},
      CopyWeights{.is_base = true},
      WeightChecksums{.is_base = true, .version = 5, .sums = {1, UINT64_MAX}},
      TookWeights{6},
      Open{.rollout = 1, .graded_by = GradedBy::kEvalSet, .sampling = {.stop_token_ids = {1}, .stop = {"x"}}},
      Pull{.rollout = 1, .count = 2},
      task,
      Done{.rollout = 1, .message = "groups"},
      Abort{.rollout = 1, .index = 2},
      Close{1},
      Alive{},
      Leaving{},
      Failed{.why = "why", .is_users = true},
      Stop{}};
}

TEST(WorkerMessages, ComeOutAsTheyWentIn) {
  const std::vector<WorkerMessage> messages = one_of_each();
  ASSERT_EQ(messages.size(), std::variant_size_v<WorkerMessage>);
  for (size_t kind = 0; kind < messages.size(); ++kind) {
    EXPECT_EQ(messages[kind].index(), kind);
    const std::string bytes = to_bytes(messages[kind]);
    const WorkerMessage read = worker_message(bytes);
    EXPECT_EQ(read.index(), kind);
    EXPECT_EQ(to_bytes(read), bytes) << "message " << kind;
  }
  const auto sums = std::get<WeightChecksums>(worker_message(to_bytes(messages[6])));
  EXPECT_TRUE(sums.is_base);
  EXPECT_EQ(sums.version, 5U);
  EXPECT_EQ(sums.sums, (std::vector<uint64_t>{1, UINT64_MAX}));
  EXPECT_EQ(std::get<Welcome>(worker_message(to_bytes(messages[1]))).shown_trained,
            (std::vector<std::string>{std::string("\0word", 5), "another"}));
}

TEST(WorkerMessages, RefuseAnEarlyEndAndWhatWasChanged) {
  for (const WorkerMessage& message : one_of_each()) {
    const std::string bytes = to_bytes(message);
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_THROW(worker_message(std::string_view(bytes).substr(0, size)), EnvironmentError);
      std::string changed = bytes;
      changed[size] ^= 0x20;
      EXPECT_THROW(worker_message(changed), EnvironmentError);
    }
  }
}

// Behind a checksum that is right: a length beyond the end, a number of another kind, bytes behind the last.
TEST(WorkerMessages, RefuseWhatNoMessageIsMadeOf) {
  std::mt19937_64 random(7);
  int64_t num_refused = 0;
  for (const WorkerMessage& message : one_of_each()) {
    const std::string sealed = to_bytes(message);
    const std::string payload(base::unsealed(sealed, kWorkerMessageFormat));
    const auto takes = [](const std::string& changed) {
      try {
        worker_message(base::sealed(changed, kWorkerMessageFormat));
        return true;
      } catch (const EnvironmentError&) {
        return false;
      }
    };
    EXPECT_TRUE(takes(payload));
    EXPECT_FALSE(takes(payload + '\0'));
    EXPECT_FALSE(takes(payload.substr(0, payload.size() - 1)));
    EXPECT_FALSE(takes("\xff" + payload.substr(1))) << "no such kind";
    for (int i = 0; i < 300; ++i) {
      std::string changed = payload;
      changed[random() % changed.size()] = static_cast<char>(random());
      num_refused += takes(changed) ? 0 : 1;
    }
  }
  EXPECT_GT(num_refused, 100);
}

}  // namespace
}  // namespace tandem::sampling
