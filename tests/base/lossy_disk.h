// Simulates a disk that forgets unsynced changes. It records every call that changes files under one directory; later
// it can make the states in which a power cut at any point may leave that directory:
//   - bytes written to a file are there if the file was synced afterwards; if it was not, they may be there, also in
//     part (512 bytes at a time, zeros between);
//   - a name that was made, moved or removed is so if its directory was synced afterwards; if it was not, each name may
//     be so by itself.
// That is as little as POSIX promises; real file systems keep more.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/file_calls.h"

namespace tandem::base {

class LossyDisk : public FileCalls {
 public:
  // `root` exists and is empty; paths outside it are not recorded.
  explicit LossyDisk(const std::string& root);

  int open(const char* path, int flags, mode_t mode) override;
  ssize_t write(int fd, const void* data, size_t size) override;
  int fsync(int fd) override;
  int ftruncate(int fd, off_t size) override;
  int close(int fd) override;
  int rename(const char* from, const char* to) override;
  int exchange(const char* a, const char* b) override;
  int symlink(const char* target, const char* path) override;
  int mkdir(const char* path, mode_t mode) override;
  int unlink(const char* path) override;
  int rmdir(const char* path) override;

  // Returns the number of calls so far that changed or synced something: a point in time.
  size_t now() const { return operations_.size(); }
  // Returns the syncs among them, to leave out one at a time.
  std::vector<size_t> syncs() const;

  // Returns "sync of step_000001.tmp-17-3 (directory)", for messages.
  std::string describe(size_t sync) const;

  // Selects how many of the unsynced changes reach the disk.
  enum class Luck : uint8_t { kNothing, kNamesOnly, kDataOnly, kRandom };
  // Writes into the empty directory `to` the state that a power cut at `point` may leave. Syncs in `left_out` did
  // nothing.
  void materialise(size_t point, Luck luck, std::mt19937_64& random, const std::set<size_t>& left_out,
                   const std::string& to) const;

 private:
  enum class Kind : uint8_t { kData, kTruncate, kSync, kSetName, kClearName };
  struct Operation {
    Kind kind = Kind::kSync;
    int64_t inode = 0;  // the written file, or the directory whose name is set
    std::string name;   // name for kSetName and kClearName
    int64_t target = 0;
    int64_t offset = 0;
    std::string data;
    size_t with = 0;  // index of the first of the names that change in the same step
  };
  struct Inode {
    bool is_directory = false, is_link = false;
    std::map<std::string, int64_t> names;
    std::string data;  // target, if it is a link
  };

  bool is_recorded(const std::string& path) const;
  int64_t directory_of(const std::string& path, std::string* name) const;
  int64_t find(const std::string& path) const;  // -1: not found
  int64_t add_inode(bool is_directory);
  Operation& record(Kind kind, int64_t inode);
  void set_name(const std::string& path, int64_t target, size_t with);
  void clear_name(const std::string& path, size_t with);
  void apply_data(const Operation& operation, Inode& inode) const;
  static void write_tree(const std::vector<Inode>& inodes, int64_t at, const std::string& to);

  const std::string root_;
  std::vector<Inode> inodes_;  // as the program sees them now; 0 is the root
  std::vector<Operation> operations_;
  std::map<int, int64_t> open_;  // descriptor -> inode
};

}  // namespace tandem::base
