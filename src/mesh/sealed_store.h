// A store whose values can only be written with a secret: beside each value is its HMAC-SHA256 over key, value and the
// run's own text. Sealed values can still be read by others, deleted, or kept from coming. Counters (add),
// which c10d's interface asks for, are the server's and are not sealed; no rank uses one.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "tandem/error.h"

namespace tandem::mesh {

// Thrown for a value that was written without the secret. Where two ranks first meet it means that they were given
// different ones; later, that somebody else has written.
class ForeignValue : public EnvironmentError {
 public:
  using EnvironmentError::EnvironmentError;
};

class SealedStore final : public c10d::Store {
 public:
  // `secret` is not empty. `run` is a text that this run alone has; a value of another run is as wrong as a forged one.
  SealedStore(c10::intrusive_ptr<c10d::Store> store, std::string secret, std::string run);

  c10::intrusive_ptr<Store> clone() override;
  using Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  // Throws ForeignValue, which names TANDEM_SECRET_FILE, if the value was written without the secret.
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override { return store_->add(key, value); }
  bool deleteKey(const std::string& key) override { return store_->deleteKey(key); }
  bool check(const std::vector<std::string>& keys) override { return store_->check(keys); }
  int64_t getNumKeys() override { return store_->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override { store_->wait(keys); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    store_->wait(keys, timeout);
  }
  const std::chrono::milliseconds& getTimeout() const noexcept override { return store_->getTimeout(); }
  void setTimeout(const std::chrono::milliseconds& timeout) override { store_->setTimeout(timeout); }
  // append() cannot be sealed.
  bool hasExtendedApi() const override { return false; }

 private:
  std::string seal_of(const std::string& key, const std::string& value) const;

  const c10::intrusive_ptr<c10d::Store> store_;
  const std::string secret_, run_;
};

// Returns whether a value that was read without a secret has a seal.
bool looks_sealed(const std::string& value);

}  // namespace tandem::mesh
