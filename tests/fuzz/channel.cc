// mesh/channel: bytes of any kind, in pieces of any size, are frames with their checksum or end the channel. The first
// byte of an input says how large the pieces are; where its highest bit is set, the rest is sent as a frame's payload.
// Before that the same bytes are the first words of a connection (mesh/handshake), which end it: nobody knows the
// secret.
#include "mesh/channel.h"

#include "mesh/handshake.h"
#include "tests/fuzz/target.h"

using namespace tandem::fuzz;
using tandem::mesh::FrameReader;

namespace {

void greet(std::string_view words, size_t piece) {
  using tandem::mesh::ChannelEnd, tandem::mesh::Handshake;
  Handshake handshake("sixteen letters!", ChannelEnd::kListens);
  try {
    while (!words.empty() && handshake.num_wanted() > 0) {
      const std::string_view part = words.substr(0, std::min(piece, handshake.num_wanted()));
      handshake.add(part);
      words.remove_prefix(part.size());
    }
  } catch (const tandem::mesh::ChannelClosed&) {
    return;
  }
  require(handshake.num_wanted() > 0, "nobody guesses a secret", words);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t piece = 1 + (data[0] & 0x7F);
  const bool is_payload = (data[0] & 0x80) != 0;
  const std::string_view input = text_of(data, size).substr(1);
  greet(input, piece);
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
