// The messages between the program and the processes of the user's generate function
// (python/tandem_worker/generator.py). Such a process runs user code, which may write anything: what it sends is judged
// here, member by member.
#pragma once

#include <cstdint>
#include <vector>

#include "base/json.h"
#include "reward/generators.h"

namespace tandem::reward {

// `run` is the number by which the process knows the sample.
base::Json to_json(const GenerateRequest& request, uint64_t run);
base::Json to_json(const EngineAnswer& answer, uint64_t run, uint64_t call);

// A process answers a turn with this. The `sample_id` and `attempt` of its parts are not set yet.
struct GeneratorReply {
  struct Asked {
    uint64_t run = 0;
    EngineCall call;
  };
  struct Ended {
    uint64_t run = 0;
    Generated result;
    bool hung = false;  // the function did not end in time, and may go on
    bool out_of_memory = false;
  };
  std::vector<Asked> asked;
  std::vector<Ended> ended;
  bool all_wait = false;  // all samples wait for the engine: nothing happens before the next answer
};
// Throws BadReply for what no honest process writes.
GeneratorReply reply_of(const base::Json& message);

}  // namespace tandem::reward
