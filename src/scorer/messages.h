// The messages between a run and a process that scores for it. Both are of one build: the first message says which, and
// a process of another build is refused.
//
//   run                       scorer
//   Hello                 ->
//                         <-  Welcome, or Refused
//   Score, Score          ->
//                         <-  Scored, in the order of the asking; Alive while others are served
//
// A run has at most kPiecesAhead unanswered pieces at a scorer. It says nothing when it is done: it closes. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tandem::scorer {

// One is scored while the next one lies ready.
inline constexpr size_t kPiecesAhead = 2;

struct Hello {
  std::string version;    // of the program
  int64_t vocab = 0;      // ids of the run's model; a teacher has at least as many
  int64_t context = 0;    // tokens that a sample of the run may have
  int64_t num_ids = 0;    // ids of the run's tokenizer
  std::string tokenizer;  // digest_of() their texts
  std::string host;       // for messages
  int64_t process = 0;    // the same

  static void fields(auto& wire, auto& m) {
    wire(m.version, m.vocab, m.context, m.num_ids, m.tokenizer, m.host, m.process);
  }
};
struct Welcome {
  std::string model;       // its directory, for messages
  std::string dtype;       // in which it computes
  std::string weights;     // checksum of their files, as weights::weights_checksum() has it
  int64_t max_tokens = 0;  // packed tokens of a forward: a piece should have no more

  // Returns a text that all processes of one teacher have in common.
  std::string identity() const { return weights + " in " + dtype; }

  static void fields(auto& wire, auto& m) { wire(m.model, m.dtype, m.weights, m.max_tokens); }
};
struct Refused {
  std::string why;  // without the address, which the run knows

  static void fields(auto& wire, auto& m) { wire(m.why); }
};
// A sample without its prompt (rl/sample.h).
struct AskedSample {
  std::vector<int32_t> completion;
  std::vector<int64_t> sequence_begins;

  static void fields(auto& wire, auto& m) { wire(m.completion, m.sequence_begins); }
};
struct AskedGroup {
  std::vector<int32_t> prompt;
  std::vector<AskedSample> samples;

  static void fields(auto& wire, auto& m) { wire(m.prompt, m.samples); }
};
struct Score {
  double temperature = 1.0;
  std::vector<AskedGroup> groups;

  static void fields(auto& wire, auto& m) { wire(m.temperature, m.groups); }
};
struct Scored {
  std::vector<std::vector<float>> logprobs;  // [sample][token of its completion], group after group

  static void fields(auto& wire, auto& m) { wire(m.logprobs); }
};
// The scorer runs, and is busy with others.
struct Alive {
  static void fields(auto& /*wire*/, auto& /*m*/) {}
};

using Message = std::variant<Hello, Welcome, Refused, Score, Scored, Alive>;
// The number changes with whatever a message is made of.
inline constexpr uint32_t kMessageFormat = 0x53430003;
std::string to_bytes(const Message& message);
// Throws EnvironmentError for bytes that are no message.
Message message_of(std::string_view bytes);

// Returns a digest of the texts of the first `num_ids` ids, each with its length; of fewer if there are not so many.
std::string digest_of(const std::vector<std::string>& token_bytes, int64_t num_ids);

}  // namespace tandem::scorer
