// How the two ends of a channel between machines know that what comes is the other's: a secret that both were given,
// and random digits that each has put in. Each direction has a key, and everything that is said in it a number, so what
// was forged, sent again, moved or sent back has another tag. Nothing is encrypted. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::mesh {

enum class ChannelEnd : uint8_t { kListens, kConnects };

class ChannelSeal {
 public:
  // Random digits of both, of which at least this end's were never used before.
  struct Digits {
    std::string of_listening, of_connecting;
  };
  ChannelSeal(std::string_view secret, ChannelEnd end, const Digits& digits);

  // What is said is a frame, bytes behind one, or the proof that an end knows the secret.
  enum class Kind : uint8_t { kProof, kFrame, kBytes };
  // 32 hexadecimal digits: the tag of what this end says next.
  std::string tag_of(Kind kind, std::string_view said);
  // Whether that is the tag of what the other end says next.
  bool is_tag_of(Kind kind, std::string_view heard, std::string_view tag);

 private:
  struct Direction {
    std::string key;
    uint64_t num_said = 0;
  };
  static std::string next_tag(Direction& direction, Kind kind, std::string_view bytes);

  Direction own_, other_;
};

}  // namespace tandem::mesh
