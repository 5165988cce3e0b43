// The sockets of a set that can be read, found without a look at each of the others (epoll).
#pragma once

#include <cstdint>
#include <vector>

namespace tandem::base {

class ReadySet {
 public:
  // Throws EnvironmentError if no descriptor is left.
  ReadySet();
  ~ReadySet();
  ReadySet(const ReadySet&) = delete;
  ReadySet& operator=(const ReadySet&) = delete;

  // `descriptor` is in the set, under that name, until it is closed. Throws EnvironmentError if the kernel has no room.
  void add(int descriptor, int64_t name);
  void remove(int descriptor);
  // Returns the names of those that can be read now, or whose other end has closed, in no order.
  std::vector<int64_t> ready() const;
  // The descriptor is readable while one of the set is.
  int descriptor() const { return descriptor_; }

 private:
  const int descriptor_;
};

}  // namespace tandem::base
