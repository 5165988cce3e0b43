#include "mesh/tls_session.h"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/hmac.h"
#include "mesh/channel.h"

namespace tandem::mesh {

namespace {

// TLS_AES_128_GCM_SHA256 (RFC 8446, B.4): the key's hash, SHA-256, has to be the suite's.
constexpr const char* kSuite = "TLS_AES_128_GCM_SHA256";
constexpr std::array<unsigned char, 2> kSuiteNumber = {0x13, 0x01};
constexpr const char* kGroups = "X25519:P-256";
// This is the name of the key, which everybody may read: it says nothing of the secret.
constexpr std::string_view kIdentity = "tandem channel 1";
constexpr std::string_view kPurpose = "tandem channel: key of TLS 1.3";  // another key than those of the sealed store

void check_ours(bool is_right, const char* what) {
  TANDEM_ENV_CHECK(is_right, fmt::format("OpenSSL cannot {}; look at its configuration (openssl version -d)", what));
}

const unsigned char* unsigned_bytes(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

// Returns the key in OpenSSL's form, made for each handshake: a session ages, and is refused after five minutes.
SSL_SESSION* session_of_key(SSL* session) {
  const auto* const key = static_cast<const TlsKey*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(session)));
  std::unique_ptr<SSL_SESSION, void (*)(SSL_SESSION*)> result(SSL_SESSION_new(), SSL_SESSION_free);
  const SSL_CIPHER* const suite = SSL_CIPHER_find(session, kSuiteNumber.data());
  const bool is_made = result != nullptr && suite != nullptr &&
                       SSL_SESSION_set1_master_key(result.get(), unsigned_bytes(key->bytes()), key->bytes().size()) &&
                       SSL_SESSION_set_cipher(result.get(), suite) &&
                       SSL_SESSION_set_protocol_version(result.get(), TLS1_3_VERSION);
  return is_made ? result.release() : nullptr;
}

// The listening end looks for the key by the name that the connecting one gives. Without one the handshake fails, since
// there is no certificate either.
int find_key(SSL* session, const unsigned char* identity, size_t size, SSL_SESSION** found) {
  const bool is_ours = std::string_view(reinterpret_cast<const char*>(identity), size) == kIdentity;
  *found = is_ours ? session_of_key(session) : nullptr;
  return !is_ours || *found != nullptr ? 1 : 0;
}

int give_key(SSL* session, const EVP_MD* hash, const unsigned char** identity, size_t* size, SSL_SESSION** given) {
  *identity = unsigned_bytes(kIdentity);
  *size = kIdentity.size();
  *given = session_of_key(session);
  return *given != nullptr ? 1 : 0;
}

SSL_CTX* new_settings(ChannelEnd end) {
  ERR_clear_error();
  return SSL_CTX_new(end == ChannelEnd::kListens ? TLS_server_method() : TLS_client_method());
}

// Returns OpenSSL's own text of the error.
std::string openssl_reason() {
  const char* const reason = ERR_reason_error_string(ERR_peek_error());
  return reason == nullptr ? "no reason given" : reason;
}

// Says why a handshake failed. Anybody can send an alert: it chooses the line and the exit code, no more.
[[noreturn]] void refuse_handshake() {
  switch (ERR_GET_REASON(ERR_peek_error())) {
    case SSL_R_BINDER_DOES_NOT_VERIFY:         // the listening end's finding
    case SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER:  // the alert by which the connecting end learns of it
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:      // the alert that RFC 8446 asks for there
      throw SecretDiffers("TANDEM_SECRET_FILE: the other end has another secret; give all the same file");
    default:
      throw ChannelClosed(fmt::format(
          "the other end is no process of this program, or of another build; look whose port that is (TLS: {})",
          openssl_reason()));
  }
}

}  // namespace

void TlsKey::Free::operator()(ssl_ctx_st* settings) const { SSL_CTX_free(settings); }

TlsKey::TlsKey(std::string_view secret, ChannelEnd end)
    : end_(end), bytes_(base::hmac_sha256_bytes(secret, kPurpose)), settings_(new_settings(end)) {
  TANDEM_CHECK(!secret.empty());
  SSL_CTX* const settings = settings_.get();
  check_ours(settings != nullptr && SSL_CTX_set_min_proto_version(settings, TLS1_3_VERSION) &&
                 SSL_CTX_set_max_proto_version(settings, TLS1_3_VERSION) &&
                 SSL_CTX_set_ciphersuites(settings, kSuite) && SSL_CTX_set1_groups_list(settings, kGroups),
             "speak TLS 1.3 with AES-128-GCM");
  SSL_CTX_set_app_data(settings, this);
  SSL_CTX_set_session_cache_mode(settings, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(settings, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
  SSL_CTX_clear_options(settings, SSL_OP_ALLOW_NO_DHE_KEX | SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
  check_ours(SSL_CTX_set_num_tickets(settings, 0) && SSL_CTX_set_max_early_data(settings, 0),
             "do without session tickets");
  if (end == ChannelEnd::kListens) {
    SSL_CTX_set_psk_find_session_callback(settings, find_key);
  } else {
    SSL_CTX_set_psk_use_session_callback(settings, give_key);
    // A listening end that shows a certificate instead of the key is refused: nobody is trusted to have signed it.
    SSL_CTX_set_verify(settings, SSL_VERIFY_PEER, nullptr);
  }
}

TlsKey::~TlsKey() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

void TlsSession::Free::operator()(ssl_st* session) const { SSL_free(session); }

TlsSession::TlsSession(const TlsKey& key, size_t bytes_per_key)
    : bytes_per_key_(bytes_per_key), session_(SSL_new(key.settings())) {
  BIO* const heard = BIO_new(BIO_s_mem());
  BIO* const said = BIO_new(BIO_s_mem());
  check_ours(session_ != nullptr && heard != nullptr && said != nullptr, "make a session");
  SSL_set_bio(session_.get(), heard, said);
  key.end() == ChannelEnd::kListens ? SSL_set_accept_state(session_.get()) : SSL_set_connect_state(session_.get());
}

TlsSession::~TlsSession() = default;

void TlsSession::add(std::string_view bytes) {
  TANDEM_CHECK(bytes.size() <= std::numeric_limits<int>::max());
  size_t added = 0;
  if (bytes.empty()) return;
  check_ours(BIO_write_ex(SSL_get_rbio(session_.get()), bytes.data(), bytes.size(), &added) && added == bytes.size(),
             "keep what has come");
}

std::string TlsSession::take_words() {
  BIO* const said = SSL_get_wbio(session_.get());
  std::string words(BIO_ctrl_pending(said), '\0');
  size_t taken = 0;
  if (!words.empty())
    check_ours(BIO_read_ex(said, words.data(), words.size(), &taken) && taken == words.size(),
               "give what is to be said");
  return words;
}

bool TlsSession::shake_hands() {
  ERR_clear_error();
  const int result = SSL_do_handshake(session_.get());
  if (result == 1) {
    // OpenSSL says of a session that began with the key that it is a resumed one.
    if (SSL_session_reused(session_.get()) == 1) return true;
    is_over_ = true;
    throw ChannelClosed("TANDEM_SECRET_FILE: the other end has not shown that it knows the secret");
  }
  if (SSL_get_error(session_.get(), result) == SSL_ERROR_WANT_READ) return false;
  is_over_ = true;
  refuse_handshake();
}

void TlsSession::write(std::span<const std::byte> bytes) {
  if (is_over_) throw ChannelClosed("the other process is gone");
  size_t written = 0;
  ERR_clear_error();
  const auto wants_key = [&] { return bytes_of_key_ >= bytes_per_key_; };
  if (wants_key()) {
    check_ours(SSL_key_update(session_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1, "take a new key");
    bytes_of_key_ = 0;
  }
  if (bytes.empty()) return;
  if (SSL_write_ex(session_.get(), bytes.data(), bytes.size(), &written) != 1 || written != bytes.size()) {
    is_over_ = true;
    throw ChannelClosed(fmt::format("what is to be said cannot be encrypted (TLS: {})", openssl_reason()));
  }
  bytes_of_key_ += written;
}

size_t TlsSession::read(std::span<std::byte> into) {
  if (is_over_) throw ChannelClosed("the other process is gone");
  size_t count = 0;
  ERR_clear_error();
  if (into.empty() || SSL_read_ex(session_.get(), into.data(), into.size(), &count) == 1) return count;
  const int error = SSL_get_error(session_.get(), 0);
  if (error == SSL_ERROR_WANT_READ) return 0;
  is_over_ = true;
  if (error == SSL_ERROR_ZERO_RETURN) throw ChannelClosed("the other process is gone");
  throw ChannelClosed(
      fmt::format("what has come is not what the other end said next: somebody else is on the network (TLS: {})",
                  openssl_reason()));
}

void TlsSession::close() {
  if (std::exchange(is_over_, true)) return;
  ERR_clear_error();
  SSL_shutdown(session_.get());
}

}  // namespace tandem::mesh
