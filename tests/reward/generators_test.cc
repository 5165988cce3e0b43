// Processes of a generate function that are lost. tests/cli/multi_turn_test.cc shows what functions do in a run.
#include "reward/generators.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "tests/base/temporary_directory.h"
#include "tests/worker/process_facts.h"

namespace tandem::reward {
namespace {

constexpr auto kAsks = R"(
from slime.utils.http_utils import post

async def generate(args, sample, sampling_params):
    answer = await post('http://engine/generate', {'input_ids': sample.tokens})
    sample.tokens = sample.tokens + answer['output_ids']
    sample.response_length = len(answer['output_ids'])
    return sample
)";

// Sample 1 waits for the engine's answer for 0.3 s at most. As soon as there is one, sample 2 computes for longer.
constexpr auto kAsksForALimitedTime = R"(
import asyncio
import time

from slime.utils.http_utils import post

asked = asyncio.Event()
question = None

async def generate(args, sample, sampling_params):
    global question
    if sample.index == 2:
        await asked.wait()
        while not question.done():
            await asyncio.sleep(0)
        time.sleep(0.6)
        return sample
    question = asyncio.ensure_future(post('http://engine/generate', {'input_ids': sample.tokens}))
    asked.set()
    # The task cancels itself as asyncio.timeout(0.3) would, which Python 3.10 does not have.
    asyncio.get_running_loop().call_later(0.3, asyncio.current_task().cancel)
    try:
        await question
    except asyncio.CancelledError:
        sample.append_response_tokens(tokens=[9], trainable=False)
    return sample
)";

constexpr auto kAsksWithStopStrings = R"(
from tandem.rollout import generate as ask_engine

async def generate(args, sample, sampling_params):
    stop = ['x' * 300000] if sample.index == 1 else []
    turn = await ask_engine(sample.tokens, {'stop': stop})
    sample.append_response_tokens(tokens=turn.tokens)
    return sample
)";

// Sample 1 asks with more ids than a reply of the process has room for. Sample 3 has too many in its response.
constexpr const char* kHasTooManyIds = R"(
from tandem.rollout import generate as ask_engine

async def generate(args, sample, sampling_params):
    turn = await ask_engine([2000000000] * (23 << 20) if sample.index == 1 else sample.tokens)
    sample.append_response_tokens(tokens=turn.tokens)
    if sample.index == 3:
        sample.tokens += [5] * (9 << 20)
        sample.response_length += 9 << 20
        sample.loss_mask = None
    return sample
)";

// Three calls at once have more ids than go out with one reply.
constexpr const char* kAsksInSeveralReplies = R"(
import asyncio
from tandem.rollout import generate as ask_engine
from tandem_worker.user_functions import engine_calls
engine_calls.MAX_IDS = 8

async def generate(args, sample, sampling_params):
    turns = await asyncio.gather(*[ask_engine([5, 6, 7, 8, first]) for first in (1, 2, 3)])
    sample.append_response_tokens(tokens=[turn.tokens[0] for turn in turns])
    return sample
)";

// A client without a key is refused, and then the function fails.
constexpr const char* kFailsAfterARefusal = R"(
import asyncio
import http.client
from tandem.rollout import endpoint

def ask_without_a_key(host):
    connection = http.client.HTTPConnection(host, timeout=30)
    connection.request('GET', '/v1/models')
    connection.getresponse().read()
    connection.close()

async def generate(args, sample, sampling_params):
    host = endpoint().base_url.split('/')[2]
    await asyncio.get_running_loop().run_in_executor(None, ask_without_a_key, host)
    raise ValueError('no answer')
)";

GeneratorConfig asking(const base::TemporaryDirectory& folder, const std::string& function = kAsks) {
  base::write_file_durably(folder / "turns.py", function);
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

// The descriptor is readable then, at which the engine waits between its steps.
TEST(Generators, AProcessThatCannotBeReplacedIsHeardOf) {
  const base::TemporaryDirectory folder;
  const std::string python = folder / "python";
  GeneratorConfig config = asking(folder);
  std::ofstream(python) << "#!/bin/sh\nexec " << config.worker.python << " \"$@\"\n";
  std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  config.worker.python = python;
  Generators generators(config);
  std::filesystem::remove(python);
  std::vector<int64_t> killed;  // the warm parent, and what stands in front of it
  worker::count_processes([&](const std::string& pid) {
    if (worker::process_state(pid).parent != ::getpid() || ::kill(std::stoi(pid), SIGKILL) != 0) return false;
    killed.push_back(std::stoi(pid));
    return true;
  });
  for (const int64_t pid : killed) worker::wait_for_exit(pid);
  generators.begin(generated(1));
  pollfd has_ended = {.fd = generators.descriptor(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&has_ended, 1, 120'000), 1);
  std::vector<GeneratorEvent> events;
  const std::optional<Generated> failed = next<Generated>(generators, events);
  ASSERT_TRUE(failed);
  EXPECT_NE(failed->failure.find("a new process could not start: "), std::string::npos) << failed->failure;
  EXPECT_TRUE(failed->machine_failed);
}

// The time-out passes while the sample waits for the next turn, after an answer that came in time. It was once lost,
// and the sample with it.
TEST(Generators, AFunctionSeesItsOwnTimeOut) {
  const base::TemporaryDirectory folder;
  Generators generators(asking(folder, kAsksForALimitedTime));
  std::vector<GeneratorEvent> events;
  generators.begin(generated(1));
  generators.begin(generated(2));
  const std::optional<EngineCall> asked = next<EngineCall>(generators, events);
  ASSERT_TRUE(asked);
  generators.answer(asked->sample_id, asked->attempt, asked->call, two_tokens());
  std::map<uint64_t, Generated> made;
  for (int i = 0; i < 2; ++i) {
    std::optional<Generated> one = next<Generated>(generators, events);
    ASSERT_TRUE(one) << i;
    made[one->sample_id] = *std::move(one);
  }
  EXPECT_EQ(made[1].failure, "");
  EXPECT_EQ(made[1].tokens, (std::vector<int32_t>{5, 6, 9}));
  EXPECT_EQ(made[2].failure, "");
}

// The program takes a call's parameters up to a bound, and a process that sends more is lost with all its samples.
TEST(Generators, ACallWithTooManyBytesOfStopStringsFailsItsFunctionAlone) {
  const base::TemporaryDirectory folder;
  Generators generators(asking(folder, kAsksWithStopStrings));
  std::vector<GeneratorEvent> events;
  generators.begin(generated(2));
  const std::optional<EngineCall> asked = next<EngineCall>(generators, events);
  ASSERT_TRUE(asked);

  generators.begin(generated(1));
  const std::optional<Generated> failed = next<Generated>(generators, events);
  ASSERT_TRUE(failed);
  EXPECT_EQ(failed->sample_id, 1U);
  EXPECT_NE(failed->failure.find("sampling_params: they have 300"), std::string::npos) << failed->failure;

  generators.answer(2, asked->attempt, asked->call, two_tokens());
  const std::optional<Generated> made = next<Generated>(generators, events);
  ASSERT_TRUE(made);
  EXPECT_EQ(made->sample_id, 2U);
  EXPECT_EQ(made->failure, "");
  EXPECT_EQ(made->tokens, (std::vector<int32_t>{5, 6, 7, 8}));
  EXPECT_EQ(generators.restarts(), 0);
  EXPECT_EQ(generators.repeated(), 0);
}

// The counts of a sample were lost where its function failed, and with them the refusals of other clients.
TEST(Generators, RefusalsAreCountedWhereTheFunctionFailsAndWhereNobodyTakesTheSample) {
  const base::TemporaryDirectory folder;
  GeneratorConfig config = asking(folder, kFailsAfterARefusal);
  config.endpoint = config.worker.loopback = true;
  Generators generators(config);
  std::vector<GeneratorEvent> events;
  generators.begin(generated(1));
  const std::optional<Generated> first = next<Generated>(generators, events);
  ASSERT_TRUE(first);
  EXPECT_NE(first->failure.find("no answer"), std::string::npos) << first->failure;
  EXPECT_EQ(first->endpoint_refused, 1);

  generators.begin(generated(2));
  pollfd has_ended = {.fd = generators.descriptor(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&has_ended, 1, 60'000), 1);
  generators.cancel(2);
  generators.begin(generated(3));
  const std::optional<Generated> third = next<Generated>(generators, events);
  ASSERT_TRUE(third);
  EXPECT_EQ(third->sample_id, 3U);
  EXPECT_EQ(third->endpoint_refused, 2);
}

// A reply beyond the bound of the protocol ended the process, and all its samples began again.
TEST(Generators, ACallOrASampleWithTooManyTokenIdsFailsItsFunctionAlone) {
  const base::TemporaryDirectory folder;
  Generators generators(asking(folder, kHasTooManyIds));
  std::vector<GeneratorEvent> events;
  generators.begin(generated(2));
  const std::optional<EngineCall> asked = next<EngineCall>(generators, events);
  ASSERT_TRUE(asked);

  generators.begin(generated(1));
  const std::optional<Generated> failed = next<Generated>(generators, events);
  ASSERT_TRUE(failed);
  EXPECT_EQ(failed->sample_id, 1U);
  EXPECT_NE(failed->failure.find("input_ids holds 24117248 token ids, and may hold 8388608"), std::string::npos)
      << failed->failure;

  generators.begin(generated(3));
  const std::optional<EngineCall> third = next<EngineCall>(generators, events);
  ASSERT_TRUE(third);
  generators.answer(3, third->attempt, third->call, two_tokens());
  const std::optional<Generated> large = next<Generated>(generators, events);
  ASSERT_TRUE(large);
  EXPECT_EQ(large->sample_id, 3U);
  EXPECT_NE(large->failure.find("the function returned 9437188 tokens, and a sample may have 8388608"),
            std::string::npos)
      << large->failure;

  generators.answer(2, asked->attempt, asked->call, two_tokens());
  const std::optional<Generated> made = next<Generated>(generators, events);
  ASSERT_TRUE(made);
  EXPECT_EQ(made->sample_id, 2U);
  EXPECT_EQ(made->failure, "");
  EXPECT_EQ(generators.restarts(), 0);
  EXPECT_EQ(generators.repeated(), 0);
}

TEST(Generators, CallsThatFindNoRoomInAReplyComeWithTheNext) {
  const base::TemporaryDirectory folder;
  Generators generators(asking(folder, kAsksInSeveralReplies));
  std::vector<GeneratorEvent> events;
  generators.begin(generated(1));
  std::vector<EngineCall> calls;
  for (int i = 0; i < 3; ++i) {
    std::optional<EngineCall> asked = next<EngineCall>(generators, events);
    ASSERT_TRUE(asked) << i;
    EXPECT_EQ(asked->input_ids.back(), i + 1);
    calls.push_back(*std::move(asked));
  }
  for (const EngineCall& call : calls) generators.answer(1, call.attempt, call.call, two_tokens());
  const std::optional<Generated> made = next<Generated>(generators, events);
  ASSERT_TRUE(made);
  EXPECT_EQ(made->failure, "");
  EXPECT_EQ(made->tokens, (std::vector<int32_t>{5, 6, 7, 7, 7}));
}

}  // namespace
}  // namespace tandem::reward
