// The client of the store of ranks on one machine: it uses a socket that only processes of the same user reach
// (mesh/local_socket.h). One of the ranks serves the store (mesh/local_store_server.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "mesh/local_store_server.h"
#include "mesh/network.h"

namespace tandem::mesh {

class LocalStore final : public c10d::Store {
 public:
  // `who` names this process in messages ("rank 2 of 4"). `server` is set in the process that serves the store, and
  // kept as long as this object.
  LocalStore(OwnedDescriptor socket, std::string who, std::chrono::milliseconds timeout,
             std::unique_ptr<LocalStoreServer> server = nullptr);

  // Returns a connection to another process, which calls it with the same key: each pair of calls is a pair of ends.
  OwnedDescriptor connect(const std::string& key);

  // All calls throw EnvironmentError if rank 0 is gone, or does not answer within the timeout.
  using Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  // Waits until the key is there.
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;  // BugError: nobody asks for it
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  // A key that does not come within the time is an EnvironmentError too, after which the store still answers.
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  c10::intrusive_ptr<Store> clone() override;  // BugError: nobody asks for it
  bool hasExtendedApi() const override { return false; }

 private:
  struct Answer {
    int64_t number = 0;
    std::string bytes;
    OwnedDescriptor descriptor;
  };
  Answer ask(StoreCall call, const std::string& key, std::string_view value = "");
  void send(std::string_view bytes) const;
  void receive(char* into, size_t bytes, OwnedDescriptor* descriptor = nullptr) const;
  [[noreturn]] void throw_lost(int error) const;
  std::string no_answer() const;

  const OwnedDescriptor socket_;
  const std::string who_;
  const std::unique_ptr<LocalStoreServer> server_;
  std::mutex mutex_;  // allows one call at a time
};

}  // namespace tandem::mesh
