#include "tests/base/lossy_disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace tandem::base {

namespace {
constexpr int64_t kSectorBytes = 512;
}  // namespace

LossyDisk::LossyDisk(const std::string& root) : root_(root) { inodes_.emplace_back().is_directory = true; }

bool LossyDisk::is_recorded(const std::string& path) const { return path == root_ || path.starts_with(root_ + "/"); }

int64_t LossyDisk::directory_of(const std::string& path, std::string* name) const {
  const std::string relative = path == root_ ? "" : path.substr(root_.size() + 1);
  int64_t at = 0;
  size_t begin = 0;
  while (true) {
    const size_t end = relative.find('/', begin);
    *name = relative.substr(begin, end == std::string::npos ? end : end - begin);
    if (end == std::string::npos) return at;
    const auto found = inodes_[static_cast<size_t>(at)].names.find(*name);
    if (found == inodes_[static_cast<size_t>(at)].names.end()) throw std::logic_error("not recorded: " + path);
    at = found->second;
    begin = end + 1;
  }
}

int64_t LossyDisk::find(const std::string& path) const {
  if (path == root_) return 0;
  std::string name;
  const Inode& directory = inodes_[static_cast<size_t>(directory_of(path, &name))];
  const auto found = directory.names.find(name);
  return found == directory.names.end() ? -1 : found->second;
}

int64_t LossyDisk::add_inode(bool is_directory) {
  inodes_.emplace_back().is_directory = is_directory;
  return static_cast<int64_t>(inodes_.size()) - 1;
}

LossyDisk::Operation& LossyDisk::record(Kind kind, int64_t inode) {
  Operation& operation = operations_.emplace_back();
  operation.kind = kind;
  operation.inode = inode;
  return operation;
}

void LossyDisk::set_name(const std::string& path, int64_t target, size_t with) {
  std::string name;
  const int64_t directory = directory_of(path, &name);
  inodes_[static_cast<size_t>(directory)].names[name] = target;
  Operation& operation = record(Kind::kSetName, directory);
  operation.name = name;
  operation.target = target;
  operation.with = with;
}

void LossyDisk::clear_name(const std::string& path, size_t with) {
  std::string name;
  const int64_t directory = directory_of(path, &name);
  inodes_[static_cast<size_t>(directory)].names.erase(name);
  Operation& operation = record(Kind::kClearName, directory);
  operation.name = name;
  operation.with = with;
}

int LossyDisk::open(const char* path, int flags, mode_t mode) {
  const int fd = FileCalls::open(path, flags, mode);
  if (fd < 0 || !is_recorded(path)) return fd;
  int64_t inode = find(path);
  if (inode < 0) {
    inode = add_inode(false);
    set_name(path, inode, now());
  } else if ((flags & O_TRUNC) != 0) {
    record(Kind::kTruncate, inode);
    inodes_[static_cast<size_t>(inode)].data.clear();
  }
  open_[fd] = inode;
  return fd;
}

ssize_t LossyDisk::write(int fd, const void* data, size_t size) {
  const ssize_t n = FileCalls::write(fd, data, size);
  const auto found = open_.find(fd);
  if (n <= 0 || found == open_.end()) return n;
  Inode& inode = inodes_[static_cast<size_t>(found->second)];  // all writes here append
  const std::string text(static_cast<const char*>(data), static_cast<size_t>(n));
  Operation& operation = record(Kind::kData, found->second);
  operation.offset = static_cast<int64_t>(inode.data.size());
  operation.data = text;
  inode.data += text;
  return n;
}

int LossyDisk::fsync(int fd) {
  const auto found = open_.find(fd);
  if (found != open_.end()) record(Kind::kSync, found->second);
  return 0;  // waiting for the real disk would change nothing
}

int LossyDisk::ftruncate(int fd, off_t size) {
  const int result = FileCalls::ftruncate(fd, size);
  const auto found = open_.find(fd);
  if (result != 0 || found == open_.end()) return result;
  record(Kind::kTruncate, found->second).offset = size;
  inodes_[static_cast<size_t>(found->second)].data.resize(static_cast<size_t>(size));
  return result;
}

int LossyDisk::close(int fd) {
  open_.erase(fd);
  return FileCalls::close(fd);
}

int LossyDisk::rename(const char* from, const char* to) {
  const int result = FileCalls::rename(from, to);
  if (result != 0 || !is_recorded(from)) return result;
  const int64_t target = find(from);
  const size_t with = now();
  clear_name(from, with);
  set_name(to, target, with);
  return result;
}

int LossyDisk::exchange(const char* a, const char* b) {
  const int result = FileCalls::exchange(a, b);
  if (result != 0 || !is_recorded(a)) return result;
  const int64_t first = find(a), second = find(b);
  const size_t with = now();
  set_name(a, second, with);
  set_name(b, first, with);
  return result;
}

int LossyDisk::symlink(const char* target, const char* path) {
  const int result = FileCalls::symlink(target, path);
  if (result != 0 || !is_recorded(path)) return result;
  const int64_t inode = add_inode(false);
  inodes_[static_cast<size_t>(inode)].is_link = true;
  inodes_[static_cast<size_t>(inode)].data = target;
  set_name(path, inode, now());
  return result;
}

int LossyDisk::mkdir(const char* path, mode_t mode) {
  const int result = FileCalls::mkdir(path, mode);
  if (result == 0 && is_recorded(path)) set_name(path, add_inode(true), now());
  return result;
}

int LossyDisk::unlink(const char* path) {
  const int result = FileCalls::unlink(path);
  if (result == 0 && is_recorded(path)) clear_name(path, now());
  return result;
}

int LossyDisk::rmdir(const char* path) {
  const int result = FileCalls::rmdir(path);
  if (result == 0 && is_recorded(path)) clear_name(path, now());
  return result;
}

std::vector<size_t> LossyDisk::syncs() const {
  std::vector<size_t> result;
  for (size_t i = 0; i < operations_.size(); ++i) {
    if (operations_[i].kind == Kind::kSync) result.push_back(i);
  }
  return result;
}

std::string LossyDisk::describe(size_t sync) const {
  const int64_t inode = operations_[sync].inode;
  std::string name = "the root";
  for (size_t i = 0; i < sync; ++i) {
    if (operations_[i].kind == Kind::kSetName && operations_[i].target == inode) name = operations_[i].name;
  }
  return "sync of " + name + (inodes_[static_cast<size_t>(inode)].is_directory ? " (directory)" : "");
}

void LossyDisk::apply_data(const Operation& operation, Inode& inode) const {
  const auto end = static_cast<size_t>(operation.offset) + operation.data.size();
  if (inode.data.size() < end) inode.data.resize(end);
  std::copy(operation.data.begin(), operation.data.end(), inode.data.begin() + operation.offset);
}

void LossyDisk::materialise(size_t point, Luck luck, std::mt19937_64& random, const std::set<size_t>& left_out,
                            const std::string& to) const {
  // This finds the last sync of each inode before the point: all changes before that sync are certain.
  std::map<int64_t, size_t> synced;
  for (size_t i = 0; i < point; ++i) {
    if (operations_[i].kind == Kind::kSync && !left_out.contains(i)) synced[operations_[i].inode] = i;
  }
  std::bernoulli_distribution coin(std::uniform_real_distribution<double>(0.1, 0.9)(random));
  std::vector<Inode> disk = inodes_;
  for (Inode& inode : disk) {
    inode.names.clear();
    if (!inode.is_link) inode.data.clear();
  }
  std::map<size_t, bool> together;
  for (size_t i = 0; i < point; ++i) {
    const Operation& operation = operations_[i];
    if (operation.kind == Kind::kSync) continue;
    Inode& inode = disk[static_cast<size_t>(operation.inode)];
    const auto found = synced.find(operation.inode);
    const bool is_certain = found != synced.end() && i < found->second;
    const bool is_name = operation.kind == Kind::kSetName || operation.kind == Kind::kClearName;
    bool happens =
        is_certain || luck == (is_name ? Luck::kNamesOnly : Luck::kDataOnly) || (luck == Luck::kRandom && coin(random));
    if (is_name) happens = together.emplace(operation.with, happens).first->second;
    if (!happens) continue;
    switch (operation.kind) {
      case Kind::kSetName: inode.names[operation.name] = operation.target; break;
      case Kind::kClearName: inode.names.erase(operation.name); break;
      case Kind::kTruncate: inode.data.resize(static_cast<size_t>(operation.offset)); break;
      default:
        if (is_certain || luck != Luck::kRandom) {
          apply_data(operation, inode);
          break;
        }
        // The write is torn: only some of its sectors arrive.
        for (size_t at = 0; at < operation.data.size(); at += kSectorBytes) {
          if (!coin(random)) continue;
          Operation sector = operation;
          sector.offset += static_cast<int64_t>(at);
          sector.data = operation.data.substr(at, kSectorBytes);
          apply_data(sector, inode);
        }
    }
  }
  write_tree(disk, 0, to);
}

void LossyDisk::write_tree(const std::vector<Inode>& inodes, int64_t at, const std::string& to) {
  for (const auto& [name, target] : inodes[static_cast<size_t>(at)].names) {
    const Inode& inode = inodes[static_cast<size_t>(target)];
    const std::string path = to + "/" + name;
    if (inode.is_directory) {
      std::filesystem::create_directory(path);
      write_tree(inodes, target, path);
    } else if (inode.is_link) {
      std::filesystem::create_symlink(inode.data, path);
    } else {
      std::ofstream(path, std::ios::binary) << inode.data;
    }
  }
}

}  // namespace tandem::base
