// The user's function that makes samples in several turns (--custom-generate-function-path, docs/SAMPLING.md), in
// worker processes: python/tandem_worker/generator.py runs many samples at once in one event loop. What a function asks
// the engine comes out of take() and its answer goes in with answer(); no socket is opened. A sample has a limit of
// time beside what it waits for the engine, a process has limits of memory, files and output. When a process is lost
// with several samples under way, nobody knows whose fault it was: each begins again from the start, alone, so that
// what becomes of a sample depends on that sample only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "base/json.h"
#include "reward/generator_limits.h"
#include "worker/worker_config.h"

namespace tandem::reward {

struct GeneratorConfig : worker::UserCodeConfig {
  std::string function;                         // FILE.py:function
  std::string model_directory;                  // the function gets the tokenizer of this model
  std::string metadata_key;                     // the key of the metadata that is a slime sample's own
  base::Json arguments = base::Json::object();  // the run's flags and their values: `args`
  GeneratorLimits limits;
  int64_t memory_bytes = int64_t{2} << 30;  // the limit of each process
  bool endpoint = false;                    // the function may have an endpoint for its agents
  int64_t max_sequences = 1;                // sequences of which a sample may be made
  int64_t max_further_sequences = 0;        // those among them that do not continue the prompt
};

// A sample to be made. No other sample under way has its id.
struct GenerateRequest {
  uint64_t group_id = 0, sample_id = 0;
  base::Json prompt;  // string or message list, as the data line had it
  std::string prompt_text;
  std::vector<int32_t> prompt_tokens;
  base::Json label;
  base::Json metadata;
  base::Json sampling;             // {"temperature", "max_new_tokens", ...}: `sampling_params`
  int64_t max_context_tokens = 0;  // the most that prompt and response may have
  bool is_evaluation = false;
};

// A function asks the engine this.
struct EngineCall {
  uint64_t sample_id = 0;
  uint64_t attempt = 0;  // ascends; a sample that began again has a larger one
  uint64_t call = 0;     // numbers the calls of this attempt
  std::vector<int32_t> input_ids;
  base::Json sampling;  // an object
};

struct EngineAnswer {
  std::string error = {};  // one line that the function gets as a ValueError; empty: none
  std::vector<int32_t> tokens = {};
  std::vector<float> logprobs = {};
  std::string finish_reason = {};  // "stop" or "length"
};

// The end of a sample: it is made, or has failed.
struct Generated {
  uint64_t sample_id = 0;
  uint64_t attempt = 0;
  std::string failure;          // why there is no sample; empty: there is one
  bool machine_failed = false;  // the failure is the machine's: a process could not be started
  std::vector<int32_t> tokens;  // prompt and response
  int64_t response_length = 0;  // tokens of the response; 0 <= it <= tokens
  // Indices in the response at which further sequences begin (rl/sample.h): ascending, below response_length.
  std::vector<int64_t> sequence_begins;
  // Requests to the endpoint for this sample, also where it failed: those answered, those of them that do not continue
  // what was sampled, those with other sampling parameters than the run's, and those refused. Refusals that no sample
  // is to blame for are counted with the next one that ends.
  int64_t endpoint_answers = 0, endpoint_restarts = 0, endpoint_untrained = 0, endpoint_refused = 0;
  std::vector<uint8_t> loss_mask;  // one a token of the response; empty: all 1
  std::string status;              // "completed", "truncated", "aborted", or "": as the engine's last answer ended
  base::Json metadata;             // as the function left it: an object
  base::Json attributes;           // what the function added to the sample: an object
};

using GeneratorEvent = std::variant<EngineCall, Generated>;

class Generators {
 public:
  // Starts the forkserver; UserError when the file or the function does not exist or cannot be used.
  explicit Generators(const GeneratorConfig& config);
  ~Generators();

  void begin(GenerateRequest request);  // returns at once
  // Gives the engine's answer to a function. Drops it where the sample has begun again or is gone.
  void answer(uint64_t sample_id, uint64_t attempt, uint64_t call, EngineAnswer answer);
  // Waits that long for the first event that was not taken yet, and takes all there are. The events of a sample are in
  // their order.
  std::vector<GeneratorEvent> take(double seconds);
  // The descriptor is readable while events are there that were not taken.
  int descriptor() const;
  // Ends the sample; no event of it comes any more.
  void cancel(uint64_t sample_id);

  int64_t restarts() const;                  // processes replaced so far
  int64_t repeated() const;                  // samples that began again after their process was lost
  std::vector<int64_t> process_ids() const;  // the processes that run

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::reward
