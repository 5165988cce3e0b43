// Tests of channels between machines: a process that does not know the secret reads nothing, and bytes that the other
// end did not send, in its turn, end the channel before anybody reads them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <thread>
#include <vector>

#include "mesh/channel.h"
#include "mesh/handshake.h"
#include "tests/base/thrown.h"

namespace tandem::mesh {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

const std::string kSealSecret = "thirty-two letters of one secret";
const std::string kOther = "thirty-two letters of another one";
constexpr const char* kOtherSecret = "TANDEM_SECRET_FILE: the other end has another secret; give all the same file";
constexpr const char* kStranger = "the other end is no process of this program, or of another build";

struct Keys {
  explicit Keys(const std::string& secret = kSealSecret)
      : listens(secret, ChannelEnd::kListens), connects(secret, ChannelEnd::kConnects) {}
  TlsKey listens, connects;
};

// Gives an end bytes that come one by one. Returns what it says of them, or "".
std::string refusal(Handshake& end, std::string_view bytes) {
  return base::thrown_by<ChannelClosed>([&] {
    for (const char byte : bytes) {
      if (end.num_wanted() > 0) end.add(std::string_view(&byte, 1));
    }
  });
}

struct Refusals {
  std::string of_listening, of_connecting;
};

// Moves the words of two ends to each other, also those of an end that has refused the other.
Refusals introduce(Handshake& listening, Handshake& connecting) {
  Refusals result;
  for (int round = 0; round < 3; ++round) {
    const std::string to_listening = connecting.take_words();
    if (result.of_listening.empty()) result.of_listening = refusal(listening, to_listening);
    const std::string to_connecting = listening.take_words();
    if (result.of_connecting.empty()) result.of_connecting = refusal(connecting, to_connecting);
  }
  return result;
}

// Two ends that know each other.
struct Ends {
  explicit Ends(size_t bytes_per_key = TlsSession::kBytesPerKey) {
    const Keys keys;
    listens = std::make_unique<TlsSession>(keys.listens, bytes_per_key);
    connects = std::make_unique<TlsSession>(keys.connects, bytes_per_key);
    for (bool is_done = false; !is_done;) {
      const bool knows = connects->shake_hands();
      listens->add(connects->take_words());
      is_done = listens->shake_hands() && knows;
      connects->add(listens->take_words());
    }
  }
  std::unique_ptr<TlsSession> listens, connects;
};

std::string said(TlsSession& end, std::string_view text) {
  end.write(std::as_bytes(std::span(text)));
  return end.take_words();
}

// Returns what an end reads of these bytes, to the last.
std::string heard(TlsSession& end, std::string_view bytes) {
  std::string result;
  std::array<char, 1000> part;
  end.add(bytes);
  while (const size_t count = end.read(std::as_writable_bytes(std::span(part)))) result.append(part.data(), count);
  return result;
}

TEST(Handshake, EndsOfOneSecretOrOfNoneKnowEachOther) {
  const Keys keys;
  for (const bool has_secret : {true, false}) {
    Handshake listening(has_secret ? &keys.listens : nullptr, ChannelEnd::kListens);
    Handshake connecting(has_secret ? &keys.connects : nullptr, ChannelEnd::kConnects);
    const Refusals refusals = introduce(listening, connecting);
    EXPECT_EQ(refusals.of_listening + refusals.of_connecting, "");
    EXPECT_EQ(listening.num_wanted() + connecting.num_wanted(), 0U);
    EXPECT_EQ(listening.take_session() != nullptr, has_secret);
    EXPECT_EQ(connecting.take_session() != nullptr, has_secret);
  }
}

TEST(Handshake, AnotherSecretOrNoneIsNamedByBothEnds) {
  const Keys ours, theirs(kOther);
  Handshake listening(&ours.listens, ChannelEnd::kListens), other(&theirs.connects, ChannelEnd::kConnects);
  const Refusals refusals = introduce(listening, other);
  EXPECT_EQ(refusals.of_listening, kOtherSecret);
  EXPECT_EQ(refusals.of_connecting, kOtherSecret);

  const std::string with = "the other end was started with TANDEM_SECRET_FILE, this one without; set it for all";
  const std::string without = "the other end was started without TANDEM_SECRET_FILE, this one with; set it for all";
  Handshake sealed(&ours.listens, ChannelEnd::kListens), open_connecting(nullptr, ChannelEnd::kConnects);
  const Refusals first = introduce(sealed, open_connecting);
  EXPECT_EQ(first.of_listening, without);
  EXPECT_EQ(first.of_connecting, with);
  Handshake open(nullptr, ChannelEnd::kListens), sealed_connecting(&ours.connects, ChannelEnd::kConnects);
  const Refusals second = introduce(open, sealed_connecting);
  EXPECT_EQ(second.of_listening, with);
  EXPECT_EQ(second.of_connecting, without);
}

// A proof of the secret would let an attacker test guesses offline.
TEST(Handshake, WhoConnectsWithoutTheSecretGetsAnAlertAndNoProof) {
  const Keys ours, theirs(kOther);
  Handshake listening(&ours.listens, ChannelEnd::kListens), other(&theirs.connects, ChannelEnd::kConnects);
  EXPECT_EQ(listening.take_words(), "") << "the end that connects speaks first";
  EXPECT_EQ(refusal(listening, other.take_words()), kOtherSecret);
  const std::string answer = listening.take_words();
  ASSERT_EQ(answer.size(), 7U);
  EXPECT_EQ(answer[0], '\x15') << "an alert, of TLS's record of two bytes";
}

// An end's own words, those of an earlier connection, and bytes that are no word at all are refused.
TEST(Handshake, WhatKnowsNoSecretIsTurnedAway) {
  const Keys keys;
  Handshake mirrored(&keys.connects, ChannelEnd::kConnects);
  EXPECT_THAT(refusal(mirrored, mirrored.take_words()), StartsWith(kStranger));
  Handshake echoed(nullptr, ChannelEnd::kConnects);
  EXPECT_THAT(refusal(echoed, echoed.take_words()), StartsWith(kStranger));

  // All words of a member on one connection are replayed on another.
  Handshake member(&keys.connects, ChannelEnd::kConnects), first(&keys.listens, ChannelEnd::kListens);
  std::string replayed = member.take_words();
  EXPECT_EQ(refusal(first, replayed), "");
  EXPECT_EQ(refusal(member, first.take_words()), "");
  const std::string proof = member.take_words();
  EXPECT_EQ(refusal(first, proof), "");
  EXPECT_EQ(first.num_wanted(), 0U);
  Handshake second(&keys.listens, ChannelEnd::kListens);
  EXPECT_EQ(refusal(second, replayed), "");
  EXPECT_NE(refusal(second, proof), "");
  EXPECT_GT(second.num_wanted(), 0U);

  Handshake web(&keys.listens, ChannelEnd::kListens);
  EXPECT_THAT(refusal(web, "GET"), StartsWith(kStranger)) << "before all that is wanted has come";
  Handshake old(&keys.listens, ChannelEnd::kListens);
  EXPECT_THAT(refusal(old, "TDMCHAN1"), StartsWith(kStranger));
}

TEST(Handshake, NoMoreIsKeptOfAStrangerThanAHandshakeIsLong) {
  const Keys keys;
  // These are records of a handshake that never ends: a ClientHello says that it is 60,000 bytes long.
  std::string endless = std::string("\x16\x03\x01\x20\x00\x01\x00\xea\x60", 9) + std::string(100'000, '\0');
  Handshake listening(&keys.listens, ChannelEnd::kListens);
  size_t num_taken = 0;
  EXPECT_THROW(
      while (true) {
        const std::string_view next = std::string_view(endless).substr(num_taken, listening.num_wanted());
        num_taken += next.size();
        listening.add(next);
      },
      ChannelClosed);
  EXPECT_LE(num_taken, Handshake::kMaxBytes);
}

// The listening end has a certificate that anybody can make, and no secret.
TEST(Handshake, ACertificateIsNoSecret) {
  const std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> pair(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const std::unique_ptr<X509, void (*)(X509*)> certificate(X509_new(), X509_free);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  X509_set_pubkey(certificate.get(), pair.get());
  ASSERT_GT(X509_sign(certificate.get(), pair.get(), EVP_sha256()), 0);
  const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> settings(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  ASSERT_EQ(SSL_CTX_use_certificate(settings.get(), certificate.get()), 1);
  ASSERT_EQ(SSL_CTX_use_PrivateKey(settings.get(), pair.get()), 1);
  const std::unique_ptr<SSL, void (*)(SSL*)> impostor(SSL_new(settings.get()), SSL_free);
  BIO* const in = BIO_new(BIO_s_mem());
  BIO* const out = BIO_new(BIO_s_mem());
  SSL_set_bio(impostor.get(), in, out);

  const Keys keys;
  Handshake connecting(&keys.connects, ChannelEnd::kConnects);
  const std::string hello = connecting.take_words();
  BIO_write(in, hello.data(), static_cast<int>(hello.size()));
  SSL_accept(impostor.get());
  std::string answer(BIO_ctrl_pending(out), '\0');
  ASSERT_GT(BIO_read(out, answer.data(), static_cast<int>(answer.size())), 100) << "it has answered with a certificate";
  EXPECT_THAT(refusal(connecting, answer), HasSubstr("certificate verify failed"));
  EXPECT_GT(connecting.num_wanted(), 0U);
}

TEST(SealedChannel, WhatIsSaidInTurnIsHeardByTheOtherEndAlone) {
  const Ends ends;
  for (const char* text : {"one", "two", "three"}) {
    const std::string there = said(*ends.connects, text), back = said(*ends.listens, text);
    EXPECT_THAT(there + back, testing::Not(HasSubstr(text))) << "encrypted";
    EXPECT_NE(there.substr(5), back.substr(5)) << "each direction has a key";
    EXPECT_EQ(heard(*ends.listens, there), text);
    EXPECT_EQ(heard(*ends.connects, back), text);
  }
}

TEST(SealedChannel, AnythingElseEndsIt) {
  for (const char* how :
       {"forged", "changed", "longer", "shorter", "sent again", "out of turn", "sent back", "of another connection"}) {
    const Ends ends, others;
    const std::string first = said(*ends.connects, "first"), second = said(*ends.connects, "second");
    std::string wrong = first;
    if (how == std::string("forged")) wrong = frame_of("first");
    if (how == std::string("changed")) wrong.back() = static_cast<char>(wrong.back() ^ 1);
    if (how == std::string("longer")) wrong[4] = static_cast<char>(wrong[4] + 1), wrong += '\0';
    if (how == std::string("shorter")) wrong[4] = static_cast<char>(wrong[4] - 1), wrong.pop_back();
    if (how == std::string("out of turn")) wrong = second;
    if (how == std::string("sent back")) wrong = said(*ends.listens, "first");
    if (how == std::string("of another connection")) wrong = said(*others.connects, "first");
    if (how == std::string("sent again")) {
      EXPECT_EQ(heard(*ends.listens, first), "first");
    }
    EXPECT_THROW(heard(*ends.listens, wrong), ChannelClosed) << how;
    EXPECT_THROW(heard(*ends.listens, second), ChannelClosed) << how << ": nothing is heard after it";
  }
}

// A record's length is authenticated with it, and is 16 KiB at most: a larger one is refused with its header.
TEST(SealedChannel, ALengthIsNotBelievedBeforeItsTag) {
  const Ends ends;
  EXPECT_THROW(heard(*ends.listens, std::string("\x17\x03\x03\xff\xff", 5)), ChannelClosed);
  const Ends others;
  EXPECT_EQ(heard(*others.listens, std::string("\x17\x03\x03\x40\x00", 5)), "");
  EXPECT_THROW(heard(*others.listens, frame_of(std::string(20'000, 'x'))), ChannelClosed);
}

TEST(SealedChannel, EachEndTakesNewKeysAsOftenAsItsCipherAsks) {
  const Ends ends(/*bytes_per_key=*/1000);
  for (int i = 0; i < 100; ++i) {
    const std::string text(700, static_cast<char>('a' + i % 26));
    EXPECT_EQ(heard(*ends.listens, said(*ends.connects, text)), text);
    EXPECT_EQ(heard(*ends.connects, said(*ends.listens, text)), text);
  }
  const Ends without(/*bytes_per_key=*/1'000'000);
  const std::string text(700, 'x');
  for (int i = 0; i < 2; ++i) said(*ends.connects, text), said(*without.connects, text);
  EXPECT_GT(said(*ends.connects, text).size(), said(*without.connects, text).size()) << "a KeyUpdate goes first";
}

// An end that was cut off has not closed: nobody can make a message look like the last one.
TEST(SealedChannel, AnEndThatClosesSaysSo) {
  for (const bool is_cut : {false, true}) {
    Ends ends;
    std::array<int, 2> sockets = {};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()), 0);
    Channel receiver(OwnedDescriptor(sockets[1]), 5.0, kMaxFrameBytes, std::move(ends.connects));
    {
      Channel sender(OwnedDescriptor(dup(sockets[0])), 5.0, kMaxFrameBytes, std::move(ends.listens));
      sender.send("last");
      if (is_cut) shutdown(sockets[0], SHUT_RDWR);
    }
    close(sockets[0]);
    EXPECT_EQ(receiver.receive(5.0), "last");
    try {
      receiver.receive(5.0);
      ADD_FAILURE();
    } catch (const ChannelClosed& error) {
      EXPECT_EQ(std::string(error.what()),
                is_cut ? "the other process is gone, or somebody has cut the connection" : "the other process is gone");
    }
  }
}

// A run once waited for workers whose words lay decrypted in their channels, while it looked at the sockets alone.
TEST(SealedChannel, WhatTheSocketShowsNoMoreIsKnownToBeThere) {
  Ends ends;
  std::array<int, 2> sockets = {};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()), 0);
  Channel receiver(OwnedDescriptor(sockets[1]), 5.0, kMaxFrameBytes, std::move(ends.connects));
  Channel sender(OwnedDescriptor(sockets[0]), 5.0, kMaxFrameBytes, std::move(ends.listens));
  for (const char* text : {"one", "two", "three"}) sender.send(text);
  EXPECT_TRUE(receiver.may_have_more());
  EXPECT_EQ(receiver.receive(5.0), "one");
  pollfd polled = {receiver.descriptor(), POLLIN, 0};
  EXPECT_EQ(poll(&polled, 1, 0), 0) << "the socket shows nothing";
  EXPECT_TRUE(receiver.may_have_more());
  EXPECT_EQ(receiver.receive(0.0), "two");
  EXPECT_EQ(receiver.receive(0.0), "three");
  EXPECT_EQ(receiver.receive(0.0), std::nullopt);
  EXPECT_FALSE(receiver.may_have_more());
}

TEST(SealedChannel, WhatIsSentWithoutWaitingIsSealedInItsTurn) {
  Ends ends;
  std::array<int, 2> sockets = {};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()), 0);
  Channel receiver(OwnedDescriptor(sockets[1]), 5.0, kMaxFrameBytes, std::move(ends.connects));
  Channel sender(OwnedDescriptor(sockets[0]), 5.0, kMaxFrameBytes, std::move(ends.listens));
  const std::string large(3'000'000, 'x');  // more than the kernel keeps
  sender.send_without_waiting(large);
  EXPECT_TRUE(sender.has_rest());
  sender.send_without_waiting("two");
  std::optional<std::string> got;
  while (!got) {
    sender.send_rest();
    got = receiver.receive(0.0);
  }
  EXPECT_EQ(got, large);
  sender.send("three");
  EXPECT_EQ(receiver.receive(5.0), "two");
  EXPECT_EQ(receiver.receive(5.0), "three");
}

// The bytes may be taken in other parts than they were sent in.
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
        if (!is_changed) return channel.send_bytes(sent), channel.send("behind"), channel.wait_until_closed(5.0);
        Channel(OwnedDescriptor(dup(sockets[0])), 5.0, kMaxFrameBytes, std::move(others.listens)).send_bytes(sent);
      } catch (const ChannelClosed&) {  // the receiver has closed
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
