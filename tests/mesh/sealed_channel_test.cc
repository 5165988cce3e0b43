// Channels between machines: what was not said by the other end, in its turn, ends the channel before anybody reads it.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <thread>
#include <vector>

#include "mesh/channel.h"
#include "mesh/handshake.h"

namespace tandem::mesh {
namespace {

const std::string kSecret = "sixteen letters!";

// Moves the words of two ends to each other, a byte at a time.
void introduce(Handshake& a, Handshake& b) {
  for (int round = 0; round < 3; ++round) {
    for (const auto& [from, to] : {std::pair{&a, &b}, {&b, &a}}) {
      for (const char byte : from->take_words()) to->add(std::string_view(&byte, 1));
    }
  }
}

struct Ends {
  explicit Ends(const std::string& secret = kSecret) {
    Handshake listening(secret, ChannelEnd::kListens), connecting(secret, ChannelEnd::kConnects);
    introduce(listening, connecting);
    EXPECT_EQ(listening.num_wanted(), 0U);
    EXPECT_EQ(connecting.num_wanted(), 0U);
    listens = listening.take_seal();
    connects = connecting.take_seal();
  }
  std::unique_ptr<ChannelSeal> listens, connects;
};

std::string why_refused(Handshake& a, Handshake& b) {
  try {
    introduce(a, b);
  } catch (const ChannelClosed& error) {
    return error.what();
  }
  return "";
}

std::optional<std::string> read_frame(const std::string& frame, ChannelSeal* seal) {
  FrameReader reader(kMaxFrameBytes, seal);
  reader.add(frame);
  return reader.next();
}

TEST(Handshake, EndsOfOneSecretOrOfNoneKnowEachOther) {
  EXPECT_TRUE(Ends().listens);
  EXPECT_FALSE(Ends("").listens);
}

TEST(Handshake, AnotherSecretOrNoneIsNamed) {
  Handshake ours(kSecret, ChannelEnd::kListens), theirs("a second secret!", ChannelEnd::kConnects);
  EXPECT_EQ(why_refused(ours, theirs), "TANDEM_SECRET_FILE: the other end has another secret; give all the same file");
  Handshake sealed(kSecret, ChannelEnd::kListens), open("", ChannelEnd::kConnects);
  EXPECT_EQ(why_refused(sealed, open),
            "the other end was started with TANDEM_SECRET_FILE, this one without; set it for all");
}

// Neither its own words, nor those of a connection before, nor what is no word at all.
TEST(Handshake, WhatKnowsNoSecretIsTurnedAway) {
  Handshake mirrored(kSecret, ChannelEnd::kListens);
  EXPECT_THROW(mirrored.add(mirrored.take_words()), ChannelClosed);

  Handshake first(kSecret, ChannelEnd::kListens), member(kSecret, ChannelEnd::kConnects);
  first.add(member.take_words().substr(0, first.num_wanted()));
  const std::string digits_of_first = first.take_words();
  Handshake heard(kSecret, ChannelEnd::kConnects);
  std::string replayed = heard.take_words();
  heard.add(digits_of_first.substr(0, heard.num_wanted()));
  replayed += heard.take_words();
  Handshake second(kSecret, ChannelEnd::kListens);
  second.take_words();
  second.add(replayed.substr(0, second.num_wanted()));
  EXPECT_THROW(second.add(replayed.substr(replayed.size() - second.num_wanted())), ChannelClosed);

  Handshake web(kSecret, ChannelEnd::kListens);
  EXPECT_THROW(web.add("GET"), ChannelClosed) << "before all that is wanted has come";
}

TEST(SealedChannel, WhatIsSaidInTurnIsHeard) {
  const Ends ends;
  for (const char* text : {"one", "", "three"}) {
    EXPECT_EQ(read_frame(frame_of(text, ends.connects.get()), ends.listens.get()), text);
    EXPECT_EQ(read_frame(frame_of(text, ends.listens.get()), ends.connects.get()), text);
  }
}

TEST(SealedChannel, AnyOtherFrameEndsIt) {
  for (const char* how : {"forged", "changed", "sent again", "out of turn", "sent back", "of another connection"}) {
    const Ends ends, others;
    const std::string first = frame_of("first", ends.connects.get()), second = frame_of("second", ends.connects.get());
    std::string wrong = first;
    if (how == std::string("forged")) wrong = frame_of("first");
    if (how == std::string("changed")) wrong.back() = 'T';
    if (how == std::string("out of turn")) wrong = second;
    if (how == std::string("sent back")) wrong = frame_of("first", ends.listens.get());
    if (how == std::string("of another connection")) wrong = frame_of("first", others.connects.get());
    if (how == std::string("sent again")) {
      EXPECT_EQ(read_frame(first, ends.listens.get()), "first");
    }
    EXPECT_THROW(read_frame(wrong, ends.listens.get()), ChannelClosed) << how;
  }
}

// Which may be taken in other parts than they were sent in, as bytes without a seal may.
TEST(SealedChannel, BytesBehindAFrameAreSealedToo) {
  for (const bool is_changed : {false, true}) {
    Ends ends, others;
    std::array<int, 2> sockets = {};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()), 0);
    std::vector<std::byte> sent(3'000'000), got(sent.size());
    for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 31 >> 7);
    Channel receiver(OwnedDescriptor(sockets[1]), 5.0, kMaxFrameBytes, std::move(ends.connects));
    std::jthread sender([&] {
      try {
        Channel channel(OwnedDescriptor(dup(sockets[0])), 5.0, kMaxFrameBytes, std::move(ends.listens));
        channel.send("bytes follow");
        if (!is_changed) return channel.send_bytes(sent), channel.send("behind");
        Channel(OwnedDescriptor(dup(sockets[0])), 5.0, kMaxFrameBytes, std::move(others.listens)).send_bytes(sent);
      } catch (const ChannelClosed&) {  // the receiver has had enough
      }
    });
    EXPECT_EQ(receiver.receive(5.0), "bytes follow");
    const auto take_all = [&] {
      for (size_t at = 0, size = 1; at < got.size(); at += size, size = size * 3 + 1) {
        size = std::min(size, got.size() - at);
        receiver.receive_bytes(std::span(got).subspan(at, size));
      }
    };
    if (is_changed) {
      EXPECT_THROW(take_all(), ChannelClosed);
    } else {
      take_all();
      EXPECT_TRUE(got == sent);
      EXPECT_EQ(receiver.receive(5.0), "behind");
    }
    shutdown(sockets[0], SHUT_RDWR);
    close(sockets[0]);
  }
}

}  // namespace
}  // namespace tandem::mesh
