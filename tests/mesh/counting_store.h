// A store in memory, for ranks that are threads. It counts what each of them asks.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "tandem/error.h"

namespace tandem::mesh {

struct Counts {
  int64_t sets = 0, gets = 0, checks = 0, waits = 0;
  int64_t bytes_read = 0;
  int64_t all() const { return sets + gets + checks + waits; }
};

// The values of all ranks; each waits for keys as clients of c10d's server do.
class Values {
 public:
  void set(const std::string& key, std::vector<uint8_t> value) {
    const std::scoped_lock lock(mutex_);
    values_[key] = std::move(value);
    if (awaited_.contains(key)) changed_.notify_all();
  }
  std::vector<uint8_t> get(const std::string& key) {
    const std::scoped_lock lock(mutex_);
    return values_.at(key);
  }
  bool has(const std::string& key) {
    const std::scoped_lock lock(mutex_);
    return values_.contains(key);
  }
  int64_t size() {
    const std::scoped_lock lock(mutex_);
    return std::ssize(values_);
  }
  void wait(const std::string& key, std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    awaited_.insert(key);
    if (!changed_.wait_for(lock, timeout, [&] { return values_.contains(key); })) throw EnvironmentError("timeout");
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::vector<uint8_t>> values_;
  std::set<std::string> awaited_;
};

// The store of one rank.
class CountingStore final : public c10d::Store {
 public:
  explicit CountingStore(Values& values) : values_(values) {}
  using Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    ++counts.sets;
    values_.set(key, value);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    ++counts.gets;
    std::vector<uint8_t> value = values_.get(key);
    counts.bytes_read += std::ssize(value);
    return value;
  }
  bool check(const std::vector<std::string>& keys) override {
    ++counts.checks;
    return std::all_of(keys.begin(), keys.end(), [&](const std::string& key) { return values_.has(key); });
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, std::chrono::milliseconds(60'000)); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    ++counts.waits;
    for (const std::string& key : keys) values_.wait(key, timeout);
  }
  int64_t add(const std::string& /*key*/, int64_t /*value*/) override { throw BugError("nobody counts in this store"); }
  bool deleteKey(const std::string& /*key*/) override { throw BugError("nobody deletes"); }
  int64_t getNumKeys() override { return values_.size(); }
  c10::intrusive_ptr<Store> clone() override { throw BugError("nobody clones"); }

  Counts counts;

 private:
  Values& values_;
};

}  // namespace tandem::mesh
