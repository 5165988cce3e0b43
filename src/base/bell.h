// A bell between threads that poll() can wait for together with sockets: one thread rings it when it has something for
// another, which polls descriptor() and silences it before it looks.
#pragma once

#include <span>

namespace tandem::base {

class Bell {
 public:
  // Throws EnvironmentError if no descriptor is left.
  Bell();
  ~Bell();
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  void ring();
  void silence();
  // The descriptor is readable from ring() until silence().
  int descriptor() const { return descriptor_; }

 private:
  const int descriptor_;
};

// Waits until one of the descriptors is readable, but for at most `wait_s` seconds.
void wait_readable(std::span<const int> descriptors, double wait_s);

}  // namespace tandem::base
