#include "rollout/replica_calls.h"

#include <utility>

#include "base/wire.h"

namespace tandem::rollout {

namespace {

constexpr uint32_t kFormat = 0x43470001;
constexpr uint8_t kNumPauseModes = 2, kNumPlainCalls = 6;

class CallWriter {
 public:
  explicit CallWriter(base::WireWriter& out) : out_(out) {}

  void operator()(const GroupRequest& request) {
    out_.number(request.group_id);
    out_.list(request.prompt->tokens);
    out_.list(request.sample_ids);
    const rl::SamplingParams& sampling = request.sampling;
    out_.number(sampling.temperature);
    out_.number(sampling.top_p);
    out_.number(sampling.top_k);
    out_.number(sampling.min_p);
    out_.number(sampling.max_new_tokens);
    out_.number(sampling.max_context_tokens);
    out_.list(sampling.stop_token_ids);
    out_.count(sampling.stop.size());
    for (const std::string& stop : sampling.stop) out_.text(stop);
    out_.flag(sampling.ignore_eos);
    out_.number(sampling.seed);
    out_.flag(request.owner.has_value());
    if (!request.owner) return;
    out_.number(request.owner->group_id);
    out_.number(request.owner->sample_id);
  }
  void operator()(const AbortCall& call) { out_.number(call.group_id); }
  void operator()(const ReleaseCall& call) { out_.number(call.sample_id); }
  void operator()(const PauseCall& call) { out_.number(call.mode); }
  void operator()(const PlainCall& call) { out_.number(call); }

 private:
  base::WireWriter& out_;
};

GroupRequest read_request(base::WireReader& in) {
  GroupRequest request;
  request.group_id = in.number<uint64_t>();
  request.prompt = rl::make_prompt(in.list<int32_t>());
  request.sample_ids = in.list<uint64_t>();
  rl::SamplingParams& sampling = request.sampling;
  sampling.temperature = in.number<double>();
  sampling.top_p = in.number<double>();
  sampling.top_k = in.number<int64_t>();
  sampling.min_p = in.number<double>();
  sampling.max_new_tokens = in.number<int64_t>();
  sampling.max_context_tokens = in.number<int64_t>();
  sampling.stop_token_ids = in.list<int32_t>();
  for (size_t left = in.count(sizeof(uint64_t)); left > 0; --left) sampling.stop.push_back(in.text());
  sampling.ignore_eos = in.flag();
  sampling.seed = in.number<uint64_t>();
  if (in.flag()) {
    const auto group_id = in.number<uint64_t>();
    request.owner = PrefixOwner{.group_id = group_id, .sample_id = in.number<uint64_t>()};
  }
  return request;
}

ReplicaCall read_call(base::WireReader& in) {
  switch (in.number<uint8_t>()) {  // index of the alternative
    case 0: return read_request(in);
    case 1: return AbortCall{.group_id = in.number<uint64_t>()};
    case 2: return ReleaseCall{.sample_id = in.number<uint64_t>()};
    case 3: return PauseCall{.mode = in.choice<PauseMode>(kNumPauseModes)};
    case 4: return in.choice<PlainCall>(kNumPlainCalls);
    default: base::WireReader::refuse("a call that there is not");
  }
}

}  // namespace

std::string to_bytes(const std::vector<ReplicaCall>& calls) {
  base::WireWriter out;
  out.count(calls.size());
  for (const ReplicaCall& call : calls) {
    out.number(static_cast<uint8_t>(call.index()));
    std::visit(CallWriter(out), call);
  }
  return base::sealed(out.payload(), kFormat);
}

std::vector<ReplicaCall> replica_calls(std::string_view bytes) {
  base::WireReader in(base::unsealed(bytes, kFormat));
  std::vector<ReplicaCall> calls;
  for (size_t left = in.count(2); left > 0; --left) calls.push_back(read_call(in));
  in.finish();
  return calls;
}

}  // namespace tandem::rollout
