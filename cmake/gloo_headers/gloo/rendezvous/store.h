// Stands for Gloo's header of this name, which LibTorch's wheel does not bring: the base of a class in LibTorch's own
// header. Never make an object of that class (c10d's GlooStore) here: its table of virtual functions would follow this
// declaration, not Gloo's.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace gloo::rendezvous {

class Store {
 public:
  virtual ~Store();
  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) = 0;
};

}  // namespace gloo::rendezvous
