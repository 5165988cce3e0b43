// How fast graders score: graders_bench FILE.jsonl, lines of {"response", "label"}, scored by --rm-type math.
// The lines make four batches, the first to warm up. Prints one line of JSON: the seconds of each on two processes, and
// those that one sample costs when its process was killed before, with and without that.
#include <fmt/format.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "reward/graders.h"

namespace {

using namespace tandem;
using Clock = std::chrono::steady_clock;

constexpr int kBatches = 3;
constexpr int kReplacements = 10;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

reward::GraderConfig math(int num_processes) {
  reward::GraderConfig config;
  config.worker = worker::default_worker_config();
  config.rm_types = {"math"};
  config.limits.num_processes = num_processes;
  return config;
}

double seconds_of(reward::Graders& graders, const std::vector<reward::GradeRequest>& requests) {
  const auto begin = Clock::now();
  graders.submit(requests);
  for (size_t taken = 0; taken < requests.size();) taken += graders.take_finished(/*seconds=*/1.0).size();
  return seconds_since(begin);
}

// Until the process has ended, whoever its parent is.
void kill_and_wait(int64_t pid) {
  ::kill(static_cast<pid_t>(pid), SIGKILL);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: graders_bench FILE.jsonl\n");
    return 2;
  }
  std::vector<reward::GradeRequest> requests;
  std::ifstream file(argv[1]);
  for (std::string line; std::getline(file, line);) {
    const auto json = base::parse_json(line, argv[1]);
    reward::GradeRequest request;
    request.sample_id = requests.size();
    request.response = json.at("response").get<std::string>();
    request.label = json.at("label");
    requests.push_back(request);
  }
  base::Json report;
  {
    reward::Graders graders(math(2));
    const size_t batch_size = requests.size() / (kBatches + 1);
    for (int i = 0; i <= kBatches; ++i) {  // the first warms the processes up
      const auto begin = requests.begin() + static_cast<std::ptrdiff_t>(i * batch_size);
      const double seconds = seconds_of(graders, {begin, begin + static_cast<std::ptrdiff_t>(batch_size)});
      if (i > 0) report["batch_s"].push_back(seconds);
    }
    report["failures"] = graders.failures();
  }
  reward::Graders graders(math(1));
  const std::vector<reward::GradeRequest> one = {requests.front()};
  seconds_of(graders, one);
  for (int i = 0; i < kReplacements; ++i) {
    report["one_s"].push_back(seconds_of(graders, one));
    kill_and_wait(graders.process_ids().at(0));
    report["one_after_death_s"].push_back(seconds_of(graders, one));
  }
  fmt::print("{}\n", base::dump_json(report));
  return 0;
}
