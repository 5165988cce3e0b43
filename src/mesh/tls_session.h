// One end of a connection between machines, secured by OpenSSL: TLS 1.3 with a key that both ends derive from the
// secret that they were given (RFC 8446, 2.2: an external PSK, always with a Diffie-Hellman exchange), and without
// certificates. Messages are encrypted and authenticated; recorded ones stay closed if the secret is stolen later.
// Bytes in, bytes out: no sockets. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct ssl_st;  // SSL and SSL_CTX of OpenSSL
struct ssl_ctx_st;

namespace tandem::mesh {

// TLS's client is the end that connects. It proves first that it knows the secret; an end that does not gets an alert.
enum class ChannelEnd : uint8_t { kListens, kConnects };

// The settings and the key of one end, for all its sessions; it outlives their handshakes.
class TlsKey {
 public:
  // `secret` is not empty (mesh/secret.h).
  TlsKey(std::string_view secret, ChannelEnd end);
  ~TlsKey();
  TlsKey(const TlsKey&) = delete;
  TlsKey& operator=(const TlsKey&) = delete;

  ChannelEnd end() const { return end_; }
  ssl_ctx_st* settings() const { return settings_.get(); }
  std::string_view bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(ssl_ctx_st* settings) const;
  };
  const ChannelEnd end_;
  std::string bytes_;
  const std::unique_ptr<ssl_ctx_st, Free> settings_;
};

// One thread may use it. Every error is ChannelClosed, and the session cannot be used after it.
class TlsSession {
 public:
  // AES-GCM is safe for 2^24.5 records of one key (RFC 8446, 5.5); this is a quarter of them at 16 KiB each.
  static constexpr size_t kBytesPerKey = size_t{96} << 30;

  // `key` is borrowed until the handshake is done. Each end takes a new key for the bytes that it sends after
  // `bytes_per_key`.
  explicit TlsSession(const TlsKey& key, size_t bytes_per_key = kBytesPerKey);
  ~TlsSession();

  // Takes bytes that came from the other end.
  void add(std::string_view bytes);
  // Returns the bytes that this end has to send now, once.
  std::string take_words();

  // Continues the handshake as far as the received bytes allow. Returns whether it is done: each end knows the secret.
  bool shake_hands();
  // Encrypts all of it, for take_words().
  void write(std::span<const std::byte> bytes);
  // Decrypts complete records into `into`, as many as it holds, and returns how many bytes; 0: nothing. Throws if the
  // other end has closed, if a record is not the next that it sent, and after either.
  size_t read(std::span<std::byte> into);
  // Tells the other end, by take_words(), that nothing follows: an end without this was cut off.
  void close();

 private:
  struct Free {
    void operator()(ssl_st* session) const;
  };
  const size_t bytes_per_key_;
  size_t bytes_of_key_ = 0;
  bool is_over_ = false;
  const std::unique_ptr<ssl_st, Free> session_;
};

}  // namespace tandem::mesh
