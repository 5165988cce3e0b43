// Serves the store of ranks on one machine: texts by name, counters, and connections between any two of them. No torch.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <string_view>
#include <thread>

#include "mesh/local_socket.h"
#include "mesh/network.h"

namespace tandem::mesh {

enum class StoreCall : uint32_t { kSet, kGet, kErase, kCount, kConnect };

// Begins the request of a process; key and value follow.
struct StoreRequest {
  StoreCall call = StoreCall::kGet;
  uint32_t key_bytes = 0;
  uint64_t value_bytes = 0;
};
// Begins the answer; so many bytes follow. With kConnect a descriptor comes along.
struct StoreReply {
  int64_t number = 0;  // kCount: number of keys; else whether the key was there
  uint64_t bytes = 0;
};

class LocalStoreServer {
 public:
  // Serves, on a thread, processes that connect_locally() to `name`, until it is destroyed. Throws EnvironmentError
  // like LocalListener.
  LocalStoreServer(const std::string& name, const std::string& remedy);
  ~LocalStoreServer();
  LocalStoreServer(const LocalStoreServer&) = delete;
  LocalStoreServer& operator=(const LocalStoreServer&) = delete;

 private:
  struct Client {
    OwnedDescriptor socket;
    std::string unread = {};
  };

  void serve();
  // Returns false if the client is gone, or sends bytes that no process of ours does.
  bool hear(Client& client);
  bool answer(const Client& client, StoreCall call, const std::string& key, std::string_view value);
  static bool send(const Client& client, int64_t number, std::string_view bytes, int descriptor = -1);

  const LocalListener listener_;
  const OwnedDescriptor stop_;
  std::list<Client> clients_;
  std::map<std::string, std::string> values_;
  std::map<std::string, OwnedDescriptor> halves_;  // connections for which one of the two has come
  std::thread thread_;
};

}  // namespace tandem::mesh
