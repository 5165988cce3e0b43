#include "sampling/worker_messages.h"

#include <array>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/wire.h"

namespace tandem::sampling {

namespace {

using base::WireReader;
using base::WireWriter;

// One function for both directions: `wire(x)` writes x, or reads it.
class Writing {
 public:
  explicit Writing(WireWriter& out) : out_(out) {}
  void operator()(const bool& value) { out_.flag(value); }
  void operator()(const base::WireNumber auto& value) { out_.number(value); }
  void operator()(const std::string& value) { out_.text(value); }
  void operator()(const base::Json& value) { out_.text(base::dump_json(value)); }
  template <base::WireNumber T>
  void operator()(const std::vector<T>& values) {
    out_.list(values);
  }
  template <typename Texts>
  void texts(const Texts& values) {
    out_.count(values.size());
    for (const std::string& value : values) out_.text(value);
  }

 private:
  WireWriter& out_;
};

class Reading {
 public:
  explicit Reading(WireReader& in) : in_(in) {}
  void operator()(bool& value) { value = in_.flag(); }
  template <base::WireNumber T>
  void operator()(T& value) {
    if constexpr (std::is_same_v<T, GradedBy>) {
      value = in_.choice<GradedBy>(3);
    } else {
      value = in_.number<T>();
    }
  }
  void operator()(std::string& value) { value = in_.text(); }
  void operator()(base::Json& value) { value = base::parse_json(in_.text(), "a message between processes"); }
  template <base::WireNumber T>
  void operator()(std::vector<T>& values) {
    values = in_.list<T>();
  }
  template <typename Texts>
  void texts(Texts& values) {
    for (size_t left = in_.count(sizeof(uint64_t)); left > 0; --left) values.insert(values.end(), in_.text());
  }

 private:
  WireReader& in_;
};

void fields(auto& wire, auto& m, Hello*) { wire(m.facts), wire(m.weight_hash), wire(m.process), wire(m.machine); }
void fields(auto& wire, auto& m, Welcome*) {
  wire(m.longest_prompt), wire(m.eval_context_tokens), wire(m.eval_sequences);
  wire.texts(m.line_types), wire.texts(m.eval_line_types);
  wire(m.user_output), wire.texts(m.shown_trained), wire.texts(m.shown_base);
}
void fields(auto& wire, auto& m, Refused*) { wire(m.why); }
void fields(auto& wire, auto& m, Prepared*) { wire(m.maps_weights); }
void fields(auto& wire, auto& m, Weights*) {
  wire(m.is_base), wire(m.part), wire(m.tensor), wire(m.first_byte), wire(m.num_bytes), wire(m.checksum);
  wire(m.is_last), wire(m.version);
}
void fields(auto& wire, auto& m, CopyWeights*) { wire(m.is_base); }
void fields(auto& wire, auto& m, WeightChecksums*) { wire(m.is_base), wire(m.version), wire(m.sums); }
void fields(auto& wire, auto& m, TookWeights*) { wire(m.version); }
void fields(auto& wire, auto& m, Open*) {
  wire(m.rollout), wire(m.graded_by), wire(m.eval_set), wire(m.n_samples_per_prompt), wire(m.first_sample_id);
  auto& s = m.sampling;
  wire(s.temperature), wire(s.top_p), wire(s.top_k), wire(s.min_p), wire(s.max_new_tokens), wire(s.max_context_tokens);
  wire(s.stop_token_ids), wire.texts(s.stop), wire(s.ignore_eos), wire(s.seed);
  wire(m.skip_special_tokens), wire(m.generates), wire(m.is_evaluation), wire(m.is_filtered), wire(m.groups_at_once);
}
void fields(auto& wire, auto& m, Pull*) { wire(m.rollout), wire(m.count); }
void fields(auto& wire, auto& m, Done*) { wire(m.rollout), wire(m.message); }
void fields(auto& wire, auto& m, Abort*) { wire(m.rollout), wire(m.index); }
void fields(auto& wire, auto& m, Close*) { wire(m.rollout); }
void fields(auto&, auto&, Alive*) {}
void fields(auto&, auto&, Leaving*) {}
void fields(auto& wire, auto& m, Failed*) { wire(m.why), wire(m.is_users); }
void fields(auto&, auto&, Stop*) {}

void record_fields(auto& wire, auto& record) {
  wire(record.line), wire(record.prompt), wire(record.label), wire(record.metadata), wire(record.tools);
  wire(record.rm_type);
}
void fields(Writing& wire, const Task& m, Task*) {
  wire(m.rollout), wire(m.index);
  record_fields(wire, m.line.record);
  wire(m.line.prompt->tokens), wire(m.line.prompt->text), wire(m.line.prompt->label);
}
void fields(Reading& wire, Task& m, Task*) {
  wire(m.rollout), wire(m.index);
  record_fields(wire, m.line.record);
  rl::Prompt prompt;
  wire(prompt.tokens), wire(prompt.text), wire(prompt.label);
  m.line.prompt = std::make_shared<const rl::Prompt>(std::move(prompt));
}

template <typename Message>
WorkerMessage read_as(WireReader& in) {
  Message message;
  Reading reading(in);
  fields(reading, message, static_cast<Message*>(nullptr));
  return message;
}

// By the message's place in the variant.
template <size_t... kPlaces>
constexpr auto readers(std::index_sequence<kPlaces...>) {
  return std::array{&read_as<std::variant_alternative_t<kPlaces, WorkerMessage>>...};
}
constexpr auto kReaders = readers(std::make_index_sequence<std::variant_size_v<WorkerMessage>>());

}  // namespace

std::string to_bytes(const WorkerMessage& message) {
  WireWriter out;
  out.number(static_cast<uint32_t>(message.index()));
  std::visit(
      [&]<typename Message>(const Message& m) {
        Writing writing(out);
        fields(writing, m, static_cast<Message*>(nullptr));
      },
      message);
  return base::sealed(out.payload(), kWorkerMessageFormat);
}

WorkerMessage worker_message(std::string_view bytes) {
  WireReader in(base::unsealed(bytes, kWorkerMessageFormat));
  const auto kind = in.number<uint32_t>();
  if (kind >= kReaders.size()) WireReader::refuse("a message that there is not");
  try {
    WorkerMessage message = kReaders[kind](in);
    in.finish();
    return message;
  } catch (const UserError&) {  // JSON that is none
    WireReader::refuse("a text that is no JSON");
  }
}

}  // namespace tandem::sampling
