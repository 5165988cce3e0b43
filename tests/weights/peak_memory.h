// Measures the most memory that this process takes from now on. Under the address sanitizer, whose quarantine keeps
// freed memory, it is the heap to the byte, from the sanitizer's own hooks; elsewhere it is the resident memory that
// the kernel saw.
#pragma once

#include <malloc.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>

#ifdef __SANITIZE_ADDRESS__
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void*, size_t),
                                                         void (*free_hook)(const volatile void*));
extern "C" size_t __sanitizer_get_allocated_size(const volatile void* p);
#endif

namespace tandem::weights {

#ifdef __SANITIZE_ADDRESS__

// Counts bytes above those at its construction; only one may exist at a time.
class PeakMemory {
 public:
  static constexpr bool kCountsHeap = true;  // all allocations, touched or not, but no mmap()
  // The slack covers names, maps and tensors' heads, but no weights.
  static constexpr int64_t kSlackBytes = int64_t{64} << 10;

  PeakMemory() {
    static const int installed = __sanitizer_install_malloc_and_free_hooks(&allocated, &freed);
    if (installed == 0) throw std::runtime_error("no hooks");
    live_ = 0;
    peak_ = 0;
  }
  int64_t peak_bytes() const { return peak_; }
  int64_t bytes() const { return live_; }

 private:
  static void allocated(const volatile void*, size_t bytes) {
    const int64_t live = live_ += static_cast<int64_t>(bytes);
    int64_t peak = peak_;
    while (live > peak && !peak_.compare_exchange_weak(peak, live)) {
    }
  }
  static void freed(const volatile void* p) {
    if (p != nullptr) live_ -= static_cast<int64_t>(__sanitizer_get_allocated_size(p));
  }

  static inline std::atomic<int64_t> live_;
  static inline std::atomic<int64_t> peak_;
};

#else

class PeakMemory {
 public:
  static constexpr bool kCountsHeap = false;                // touched memory alone, whatever allocated it
  static constexpr int64_t kSlackBytes = int64_t{3} << 20;  // a huge page, and other use of the process

  PeakMemory() {
    mallopt(M_MMAP_THRESHOLD, 1 << 20);  // freed memory returns to the kernel at once
    malloc_trim(0);
    std::ofstream("/proc/self/clear_refs") << "5";  // resets VmHWM, proc(5)
    start_ = status_bytes("VmRSS:");
  }
  int64_t peak_bytes() const { return status_bytes("VmHWM:") - start_; }
  int64_t bytes() const { return status_bytes("VmRSS:") - start_; }

 private:
  static int64_t status_bytes(const std::string& key) {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;) {
      int64_t kib = 0;
      if (word == key && status >> kib) return kib << 10;
    }
    throw std::runtime_error("/proc/self/status lacks " + key);
  }

  int64_t start_ = 0;
};

#endif

}  // namespace tandem::weights
