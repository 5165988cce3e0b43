// File access through plain system calls: every one is checked, and what is written is on the disk before it is named.
// Those that change the disk go through file_calls().
#include "base/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/file_calls.h"

namespace tandem::base {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTemporaryMark = ".tmp-";

std::string errno_text(int error) { return std::generic_category().message(error); }

[[noreturn]] void fail_read(const std::string& path, const char* operation, int error) {
  const char* const remedy =
      error == EACCES ? "; you need the right to read it and to search the folders above it" : "";
  throw UserError(path + ": cannot " + operation + ": " + errno_text(error) + remedy);
}

// The file's or folder's state; nothing where none exists. UserError where a folder on the way may not be searched:
// something may exist behind it, so "no such file" would be a guess.
std::optional<struct stat> look_at(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) return info;
  if (errno == EACCES) fail_read(path, "look at", errno);
  return std::nullopt;
}

[[noreturn]] void fail_write(const std::string& path, const char* operation, int error) {
  std::string remedy;
  if (error == ENOSPC || error == EDQUOT) remedy = "; free space or write elsewhere";
  if (error == EROFS || error == EACCES || error == EPERM) remedy = "; choose a directory that you may write to";
  throw EnvironmentError(path + ": cannot " + operation + ": " + errno_text(error) + remedy);
}

// Repeats a call that a signal interrupted.
template <typename Call>
auto retry_interrupted(Call call) {
  while (true) {
    const auto result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

// A descriptor that is closed when its owner throws.
class OwnedFd {
 public:
  explicit OwnedFd(int fd) : fd_(fd) {}
  ~OwnedFd() {
    if (fd_ >= 0) file_calls().close(fd_);
  }
  OwnedFd(const OwnedFd&) = delete;
  OwnedFd& operator=(const OwnedFd&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

int open_for_reading(const std::string& path) {
  const int fd = retry_interrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); });
  if (fd < 0) fail_read(path, "open", errno);
  return fd;
}

// Writes all bytes; the errno of the failure, or 0. `num_written` tells how far it came.
int write_all(int fd, const char* data, size_t size, size_t* num_written = nullptr) {
  size_t done = 0;
  int error = 0;
  while (done < size) {
    const ssize_t n = retry_interrupted([&] { return file_calls().write(fd, data + done, size - done); });
    if (n <= 0) {
      error = n < 0 ? errno : EIO;
      break;
    }
    done += static_cast<size_t>(n);
  }
  if (num_written != nullptr) *num_written = done;
  return error;
}

std::string parent_directory(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

// Makes names in a directory durable. Some file systems have nothing to do for it and say EINVAL.
void sync_directory(const std::string& path) {
  const OwnedFd fd(
      retry_interrupted([&] { return file_calls().open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); }));
  if (fd.get() < 0) fail_write(path, "open the directory", errno);
  if (retry_interrupted([&] { return file_calls().fsync(fd.get()); }) < 0 && errno != EINVAL) {
    fail_write(path, "sync the directory", errno);
  }
}

// Everything under `path`, files before the directory that names them.
void sync_tree(const std::string& path) {
  for (const std::string& name : list_directory(path)) {
    const std::string member = path + "/" + name;
    struct stat info {};
    if (::lstat(member.c_str(), &info) < 0) fail_write(member, "look at", errno);
    if (S_ISDIR(info.st_mode)) {
      sync_tree(member);
    } else if (S_ISREG(info.st_mode)) {
      sync_durably(member);
    }
  }
  sync_directory(path);
}

// `path`, or the first of its parents that is there.
std::string nearest_existing(const std::string& path) {
  fs::path at = fs::absolute(path);
  std::error_code error;
  while (!fs::exists(at, error) && at.has_relative_path()) at = at.parent_path();
  return at.string();
}

// A name beside `path` that no other process or thread uses.
std::string temporary_name(const std::string& path, int64_t attempt) {
  return path + kTemporaryMark + std::to_string(::getpid()) + "-" + std::to_string(attempt);
}

std::atomic<int64_t> next_temporary{0};

}  // namespace

std::string read_file(const std::string& path, int64_t max_bytes) {
  const OwnedFd fd(open_for_reading(path));
  std::string text;
  struct stat info {};
  if (::fstat(fd.get(), &info) < 0) fail_read(path, "look at", errno);
  if (S_ISREG(info.st_mode)) text.reserve(static_cast<size_t>(std::min<int64_t>(info.st_size, max_bytes)));
  char chunk[1 << 16];
  while (true) {
    const ssize_t n = retry_interrupted([&] { return ::read(fd.get(), chunk, sizeof chunk); });
    if (n < 0) fail_read(path, "read", errno);
    if (n == 0) return text;
    text.append(chunk, static_cast<size_t>(n));
    TANDEM_USER_CHECK(static_cast<int64_t>(text.size()) <= max_bytes, path + ": is larger than", max_bytes,
                      "bytes, the most that is read here; is it the right file?");
  }
}

bool file_exists(const std::string& path) {
  const std::optional<struct stat> info = look_at(path);
  return info && !S_ISDIR(info->st_mode);
}

bool directory_exists(const std::string& path) {
  const std::optional<struct stat> info = look_at(path);
  return info && S_ISDIR(info->st_mode);
}

std::string without_trailing_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

void make_directories(const std::string& path) {
  TANDEM_USER_CHECK(!path.empty(), "an empty name for a directory; give one");
  std::error_code unknown;  // where it may not be looked for, mkdir() says why
  if (fs::is_directory(path, unknown)) return;
  const std::string trimmed = without_trailing_slashes(path);
  const std::string parent = parent_directory(trimmed);
  if (parent != trimmed) make_directories(parent);
  if (file_calls().mkdir(trimmed.c_str(), 0777) < 0) {
    const int error = errno;
    if (error == EEXIST && fs::is_directory(trimmed, unknown)) return;  // made by another process meanwhile
    fail_write(path, "make the directory", error == EEXIST ? ENOTDIR : error);
  }
  sync_directory(parent);
}

std::vector<std::string> list_directory(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator at(path, error);
  for (const fs::directory_iterator end; !error && at != end; at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  if (error) fail_read(path, "list the directory", error.value());
  std::sort(names.begin(), names.end());
  return names;
}

ReadableFile::ReadableFile(const std::string& path) : path_(path) {
  OwnedFd fd(open_for_reading(path));
  struct stat info {};
  if (::fstat(fd.get(), &info) < 0) fail_read(path, "look at", errno);
  TANDEM_USER_CHECK(!S_ISDIR(info.st_mode), path + ": is a directory, and a file is needed");
  TANDEM_USER_CHECK(S_ISREG(info.st_mode), path + ": is no regular file (a pipe or a device); copy it to one");
  size_bytes_ = info.st_size;
  fd_ = fd.release();
}

ReadableFile::ReadableFile(ReadableFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

ReadableFile& ReadableFile::operator=(ReadableFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

ReadableFile::~ReadableFile() {
  if (fd_ >= 0) ::close(fd_);
}

void ReadableFile::read_at(int64_t offset, std::span<std::byte> buffer) const {
  TANDEM_CHECK(fd_ >= 0 && offset >= 0, path_, offset);
  size_t done = 0;
  while (done < buffer.size()) {
    const ssize_t n = retry_interrupted(
        [&] { return ::pread(fd_, buffer.data() + done, buffer.size() - done, offset + static_cast<int64_t>(done)); });
    if (n < 0) fail_read(path_, "read", errno);
    TANDEM_USER_CHECK(n > 0, path_ + ": ends at byte", offset + static_cast<int64_t>(done), "but", buffer.size() - done,
                      "more bytes are needed; it is cut off: copy or download it again");
    done += static_cast<size_t>(n);
  }
}

DurableFile::DurableFile(const std::string& path, Durable durable) : path_(path) {
  // A temporary that a killed process of the same number left is stepped over, never written into.
  do {
    temporary_ = durable == Durable::kWithDirectory ? path_ : temporary_name(path_, next_temporary++);
    fd_ = retry_interrupted(
        [&] { return file_calls().open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
  } while (fd_ < 0 && errno == EEXIST && temporary_ != path_);
  if (fd_ < 0) fail_write(path_, "create", errno);
}

DurableFile::~DurableFile() {
  if (fd_ < 0) return;
  file_calls().close(fd_);
  file_calls().unlink(temporary_.c_str());
}

void DurableFile::write(std::span<const std::byte> bytes) {
  TANDEM_CHECK(fd_ >= 0, path_, "written after commit()");
  if (const int error = write_all(fd_, reinterpret_cast<const char*>(bytes.data()), bytes.size())) {
    fail_write(path_, "write", error);
  }
}

void DurableFile::write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }

void DurableFile::commit() {
  TANDEM_CHECK(fd_ >= 0, path_, "committed twice");
  if (temporary_ == path_) {
    if (file_calls().close(std::exchange(fd_, -1)) < 0) fail_write(path_, "finish", errno);
    return;
  }
  if (retry_interrupted([&] { return file_calls().fsync(fd_); }) < 0) fail_write(path_, "sync", errno);
  // On Linux the descriptor is gone even when close() fails, so it is neither repeated nor left to the destructor.
  const bool in_place =
      file_calls().close(std::exchange(fd_, -1)) == 0 && file_calls().rename(temporary_.c_str(), path_.c_str()) == 0;
  if (!in_place) {
    const int error = errno;
    file_calls().unlink(temporary_.c_str());
    fail_write(path_, "put the finished file in place", error);
  }
  sync_directory(parent_directory(path_));
}

DurableDirectory::DurableDirectory(const std::string& final_path, bool replace)
    : final_path_(without_trailing_slashes(final_path)), replace_(replace) {
  TANDEM_USER_CHECK(!file_exists(final_path_), final_path_ + ": is a file, and a directory is to be written there");
  TANDEM_USER_CHECK(replace_ || !directory_exists(final_path_) || list_directory(final_path_).empty(),
                    final_path_ + ": exists and is not empty; remove it or choose another name");
  make_directories(parent_directory(final_path_));
  int made = 0;
  do {
    temporary_ = temporary_name(final_path_, next_temporary++);
    made = file_calls().mkdir(temporary_.c_str(), 0777);
  } while (made < 0 && errno == EEXIST);
  if (made < 0) fail_write(final_path_, "create", errno);
}

DurableDirectory::~DurableDirectory() {
  if (committed_) return;
  try {
    remove_tree(temporary_);
  } catch (const std::runtime_error&) {
    // Nothing can be done in a destructor, and the name shows what it is.
  }
}

void DurableDirectory::commit() {
  TANDEM_CHECK(!committed_, final_path_, "committed twice");
  sync_tree(temporary_);
  // rename() replaces an absent or empty directory in one step. A full one is exchanged with the new one, also in one
  // step, so that at every instant a complete directory has the name; then the old one is removed.
  std::string old;
  if (file_calls().rename(temporary_.c_str(), final_path_.c_str()) < 0) {
    if (!replace_ || (errno != ENOTEMPTY && errno != EEXIST)) fail_write(final_path_, "put in place", errno);
    old = temporary_;
    if (file_calls().exchange(temporary_.c_str(), final_path_.c_str()) < 0) {
      // A file system that cannot exchange: two renames. Killed between them, both directories are complete and the
      // old one is found under its name with ".old".
      if (errno != EINVAL && errno != ENOSYS) fail_write(final_path_, "put in place", errno);
      old = temporary_ + ".old";
      if (file_calls().rename(final_path_.c_str(), old.c_str()) < 0) fail_write(final_path_, "put aside", errno);
      if (file_calls().rename(temporary_.c_str(), final_path_.c_str()) < 0)
        fail_write(final_path_, "put in place", errno);
    }
  }
  committed_ = true;
  sync_directory(parent_directory(final_path_));
  if (!old.empty()) remove_tree(old);
}

void write_file_durably(const std::string& path, std::string_view text, Durable durable) {
  DurableFile file(path, durable);
  file.write(text);
  file.commit();
}

void remove_tree(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) < 0) {
    if (errno == ENOENT) return;
    fail_write(path, "look at", errno);
  }
  if (!S_ISDIR(info.st_mode)) {
    if (file_calls().unlink(path.c_str()) < 0) fail_write(path, "remove", errno);
    return;
  }
  for (const std::string& name : list_directory(path)) remove_tree(path + "/" + name);
  if (file_calls().rmdir(path.c_str()) < 0) fail_write(path, "remove the directory", errno);
}

void remove_durably(const std::string& path) {
  if (::access(path.c_str(), F_OK) < 0 && errno == ENOENT) return;
  const std::string aside = temporary_name(path, next_temporary++);
  if (file_calls().rename(path.c_str(), aside.c_str()) < 0) fail_write(path, "put aside", errno);
  sync_directory(parent_directory(path));
  remove_tree(aside);
}

void remove_temporaries(const std::string& directory) {
  for (const std::string& name : list_directory(directory))
    if (name.find(kTemporaryMark) != std::string::npos) remove_tree(directory + "/" + name);
}

std::string name_without_temporary_mark(const std::string& name) { return name.substr(0, name.find(kTemporaryMark)); }

void link_durably(const std::string& target, const std::string& path) {
  const std::string temporary = temporary_name(path, next_temporary++);
  if (file_calls().symlink(target.c_str(), temporary.c_str()) < 0) fail_write(path, "make the link", errno);
  if (file_calls().rename(temporary.c_str(), path.c_str()) < 0) fail_write(path, "put the link in place", errno);
  sync_directory(parent_directory(path));
}

void truncate_durably(const std::string& path, int64_t size_bytes) {
  const OwnedFd fd(retry_interrupted([&] { return file_calls().open(path.c_str(), O_WRONLY | O_CLOEXEC, 0); }));
  if (fd.get() < 0) fail_write(path, "open", errno);
  if (file_calls().ftruncate(fd.get(), size_bytes) < 0) fail_write(path, "cut", errno);
  if (retry_interrupted([&] { return file_calls().fsync(fd.get()); }) < 0) fail_write(path, "sync", errno);
}

DirectoryLock::DirectoryLock(const std::string& directory) : path_(directory + "/" + kName) {
  OwnedFd fd(retry_interrupted([&] { return ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666); }));
  if (fd.get() < 0) fail_write(path_, "open", errno);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) < 0) {
    TANDEM_USER_CHECK(errno != EWOULDBLOCK, directory + ": another run is writing here; wait for it, or end it first");
    fail_write(path_, "lock", errno);
  }
  fd_ = fd.release();
}

DirectoryLock::~DirectoryLock() { ::close(fd_); }

void sync_durably(const std::string& path) {
  const OwnedFd fd(
      retry_interrupted([&] { return file_calls().open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0); }));
  if (fd.get() < 0) fail_write(path, "open", errno);
  if (retry_interrupted([&] { return file_calls().fsync(fd.get()); }) < 0) fail_write(path, "sync", errno);
}

LineFile::LineFile(const std::string& path, bool truncate) : path_(path) {
  make_directories(parent_directory(path));
  const int flags = O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | (truncate ? O_TRUNC : 0);
  OwnedFd owner(retry_interrupted([&] { return file_calls().open(path.c_str(), flags, 0666); }));
  if (owner.get() < 0) fail_write(path, "open", errno);
  fd_ = owner.get();
  // Half a line that a power cut left must not swallow the next one.
  const int64_t size_bytes = ::lseek(fd_, 0, SEEK_END);
  char last = '\n';
  if (size_bytes > 0 && ::pread(fd_, &last, 1, size_bytes - 1) == 1 && last != '\n') append("");
  owner.release();
}

LineFile::~LineFile() { file_calls().close(fd_); }

void LineFile::write_line(std::string_view line) {
  const std::scoped_lock lock(mutex_);
  write_kept();
  append(line);
}

void LineFile::append(std::string_view line) {
  std::string text(line);
  text += '\n';
  size_t num_written = 0;
  const int error = write_all(fd_, text.data(), text.size(), &num_written);
  if (error == 0) return;
  // Take half a line back, so that what is there stays readable. When that fails too, the first error is the news.
  struct stat info {};
  if (num_written > 0 && ::fstat(fd_, &info) == 0) {
    [[maybe_unused]] const int ignored = file_calls().ftruncate(fd_, info.st_size - static_cast<int64_t>(num_written));
  }
  fail_write(path_, "write", error);
}

void LineFile::write_kept() {
  while (!kept_.empty()) {
    append(kept_.front());
    kept_.pop_front();
  }
}

std::string LineFile::write_or_keep_line(std::string_view line) {
  const std::scoped_lock lock(mutex_);
  kept_.emplace_back(line);
  try {
    write_kept();
  } catch (const EnvironmentError& error) {
    return error.what();
  }
  return "";
}

int64_t LineFile::num_kept() const {
  const std::scoped_lock lock(mutex_);
  return static_cast<int64_t>(kept_.size());
}

void LineFile::sync() {
  const std::scoped_lock lock(mutex_);
  write_kept();
  // A pipe or a terminal has nothing to sync and says EINVAL.
  if (retry_interrupted([&] { return file_calls().fsync(fd_); }) < 0 && errno != EINVAL)
    fail_write(path_, "sync", errno);
}

void check_writable_directory(const std::string& path, int64_t needed_bytes, const std::string& what_for) {
  const std::string folder = nearest_existing(path);
  const std::string probe = folder + "/.write-test-" + std::to_string(::getpid());
  const OwnedFd fd(retry_interrupted(
      [&] { return file_calls().open(probe.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666); }));
  if (fd.get() < 0) fail_write(folder, "write into the directory", errno);
  // A full disk still creates names; a byte shows it.
  const int error = write_all(fd.get(), "x", 1);
  file_calls().unlink(probe.c_str());
  if (error != 0) fail_write(folder, "write into the directory", error);
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) < 0) fail_write(folder, "ask for free space", errno);
  // Division, since blocks times size may exceed 64 bits on some network file systems.
  const auto needed_blocks = static_cast<uint64_t>(std::max<int64_t>(needed_bytes, 0)) / info.f_frsize;
  TANDEM_ENV_CHECK(needed_blocks <= info.f_bavail, folder + ": about", needed_bytes >> 20, "MiB are needed" + what_for,
                   "and", (info.f_bavail * info.f_frsize) >> 20, "MiB are free; free space or write elsewhere");
}

}  // namespace tandem::base
