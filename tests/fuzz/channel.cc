// mesh/channel: bytes of any kind, in pieces of any size, are frames with their checksum or end the channel. The first
// byte of an input says how large the pieces are; where its highest bit is set, the rest is sent as a frame's payload.
// Before that the same bytes are the first words of a connection (mesh/handshake) to a listening end with a secret and
// to one without, and to a connecting end that has spoken; with a secret nobody gets through: nobody knows it. Then
// they are what comes after a handshake (mesh/tls_session), of which nothing is believed.
#include "mesh/channel.h"

#include <array>

#include "mesh/handshake.h"
#include "tests/fuzz/target.h"

using namespace tandem::fuzz;
using tandem::mesh::FrameReader;

namespace {

using tandem::mesh::ChannelClosed, tandem::mesh::ChannelEnd, tandem::mesh::Handshake, tandem::mesh::TlsKey,
    tandem::mesh::TlsSession;

constexpr const char* kSecret = "thirty-two letters of one secret";

void greet(const TlsKey* key, ChannelEnd end, std::string_view words, size_t piece) {
  Handshake handshake(key, end);
  handshake.take_words();
  size_t num_taken = 0;
  try {
    while (num_taken < words.size() && handshake.num_wanted() > 0) {
      const std::string_view part = words.substr(num_taken, std::min(piece, handshake.num_wanted()));
      handshake.add(part);
      num_taken += part.size();
    }
  } catch (const ChannelClosed&) {
    return;
  }
  require(num_taken <= Handshake::kMaxBytes, "of a stranger little is taken", words);
  require(key == nullptr || handshake.num_wanted() > 0, "nobody guesses a secret", words);
}

void greet_all(std::string_view words, size_t piece) {
  static const TlsKey listens(kSecret, ChannelEnd::kListens), connects(kSecret, ChannelEnd::kConnects);
  greet(&listens, ChannelEnd::kListens, words, piece);
  greet(&connects, ChannelEnd::kConnects, words, piece);
  greet(nullptr, ChannelEnd::kListens, words, piece);
  greet(nullptr, ChannelEnd::kConnects, words, piece);

  TlsSession here(listens), there(connects);
  there.shake_hands();
  here.add(there.take_words());
  here.shake_hands();
  there.add(here.take_words());
  there.shake_hands();
  here.add(there.take_words());
  require(here.shake_hands(), "ends of one secret know each other", words);
  std::array<std::byte, 100> heard;
  try {
    here.add(words);
    require(here.read(heard) == 0, "what the other end did not say is not heard", words);
  } catch (const ChannelClosed&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t piece = 1 + (data[0] & 0x7F);
  const bool is_payload = (data[0] & 0x80) != 0;
  const std::string_view input = text_of(data, size).substr(1);
  greet_all(input, piece);
  const std::string bytes = is_payload ? tandem::mesh::frame_of(input) : std::string(input);
  FrameReader reader(1 << 20);
  std::string payload;
  size_t num_frames = 0;
  try {
    for (size_t at = 0; at < bytes.size(); at += piece) {
      reader.add(std::string_view(bytes).substr(at, piece));
      while (std::optional<std::string> frame = reader.next()) {
        payload = *frame;
        ++num_frames;
      }
    }
  } catch (const tandem::mesh::ChannelClosed&) {
    require(!is_payload, "a frame is read as it was written", input);
  }
  if (is_payload) require(num_frames == 1 && payload == input, "a frame comes out as it went in", input);
  return 0;
}
