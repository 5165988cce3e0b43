// Processes of a generate function that are lost. tests/cli/multi_turn_test.cc shows what functions do in a run.
#include "reward/generators.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "tests/base/temporary_directory.h"
#include "tests/worker/process_facts.h"

namespace tandem::reward {
namespace {

GeneratorConfig asking(const base::TemporaryDirectory& folder) {
  base::write_file_durably(folder / "turns.py",
                           "from slime.utils.http_utils import post\n"
                           "async def generate(args, sample, sampling_params):\n"
                           "    answer = await post('http://engine/generate', {'input_ids': sample.tokens})\n"
                           "    sample.tokens = sample.tokens + answer['output_ids']\n"
                           "    sample.response_length = len(answer['output_ids'])\n"
                           "    return sample\n");
  GeneratorConfig config;
  config.worker = worker::default_worker_config();
  config.function = folder / "turns.py:generate";
  config.model_directory = "tests/golden/models/qwen3-tied";
  config.metadata_key = "metadata";
  config.limits.num_processes = 1;
  return config;
}

GenerateRequest generated(uint64_t sample_id) {
  GenerateRequest request;
  request.sample_id = sample_id;
  request.prompt = "prompt";
  request.prompt_text = "prompt";
  request.prompt_tokens = {5, 6};
  request.metadata = base::Json::object();
  request.sampling = {{"temperature", 1.0},
                      {"top_p", 1.0},
                      {"top_k", -1},
                      {"min_p", 0.0},
                      {"max_new_tokens", 8},
                      {"stop", base::Json::array()},
                      {"stop_token_ids", base::Json::array()},
                      {"ignore_eos", false},
                      {"skip_special_tokens", false}};
  request.max_context_tokens = 64;
  return request;
}

// Returns the next event, which is waited for for a minute.
template <typename Event>
std::optional<Event> next(Generators& generators, std::vector<GeneratorEvent>& events) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (events.empty() && std::chrono::steady_clock::now() < give_up) events = generators.take(1.0);
  if (events.empty() || !std::holds_alternative<Event>(events.front())) return std::nullopt;
  Event event = std::get<Event>(std::move(events.front()));
  events.erase(events.begin());
  return event;
}

EngineAnswer two_tokens() { return {.tokens = {7, 8}, .logprobs = {-0.5F, -1.0F}, .finish_reason = "stop"}; }

// The process ends while its samples wait for the engine, between two calls to it.
TEST(Generators, SamplesThatLoseTheirProcessWhileTheyWaitForTheEngineBeginAgain) {
  const base::TemporaryDirectory folder;
  Generators generators(asking(folder));
  std::vector<GeneratorEvent> events;
  generators.begin(generated(1));
  const std::optional<EngineCall> asked = next<EngineCall>(generators, events);
  ASSERT_TRUE(asked);
  EXPECT_EQ(asked->attempt, 1U);
  EXPECT_EQ(asked->input_ids, (std::vector<int32_t>{5, 6}));

  const int64_t process = generators.process_ids().at(0);
  ::kill(static_cast<pid_t>(process), SIGKILL);
  worker::wait_until_gone(process);
  generators.answer(1, asked->attempt, asked->call, two_tokens());

  const std::optional<EngineCall> again = next<EngineCall>(generators, events);
  ASSERT_TRUE(again) << "the sample has begun again";
  EXPECT_EQ(again->attempt, 2U);
  generators.answer(1, again->attempt, again->call, two_tokens());
  const std::optional<Generated> made = next<Generated>(generators, events);
  ASSERT_TRUE(made);
  EXPECT_EQ(made->failure, "");
  EXPECT_EQ(made->tokens, (std::vector<int32_t>{5, 6, 7, 8}));
  EXPECT_EQ(made->response_length, 2);
  EXPECT_EQ(generators.restarts(), 1);
  EXPECT_EQ(generators.repeated(), 1);
}

TEST(Generators, ASampleThatLosesThreeProcessesFails) {
  const base::TemporaryDirectory folder;
  Generators generators(asking(folder));
  std::vector<GeneratorEvent> events;
  generators.begin(generated(1));
  for (int i = 0; i < 3; ++i) {
    const std::optional<EngineCall> asked = next<EngineCall>(generators, events);
    ASSERT_TRUE(asked) << i;
    const int64_t process = generators.process_ids().at(0);
    ::kill(static_cast<pid_t>(process), SIGKILL);
    worker::wait_until_gone(process);
    generators.answer(1, asked->attempt, asked->call, two_tokens());
  }
  const std::optional<Generated> lost = next<Generated>(generators, events);
  ASSERT_TRUE(lost);
  EXPECT_NE(lost->failure.find("was killed by signal 9"), std::string::npos) << lost->failure;
  EXPECT_FALSE(lost->machine_failed);
  EXPECT_EQ(generators.repeated(), 2);
}

}  // namespace
}  // namespace tandem::reward
