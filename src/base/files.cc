// File access through plain system calls, each of which is checked. Those that change the disk, look at a file or read
// it go through file_calls().
#include "base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/file_parts.h"

namespace tandem::base {
namespace {

namespace fs = std::filesystem;

// Returns the state of the file or folder; nullopt if none exists, or none can, since the name is longer than the file
// system takes. Throws fail_read()'s error if that cannot be known, for example because a folder on the way may not be
// searched or a network file system does not answer: "no such file" would be a guess, and a run that takes its
// checkpoints for absent would begin anew over them.
std::optional<struct stat> look_at(const std::string& path) {
  struct stat info {};
  if (retry_interrupted([&] { return file_calls().stat(path.c_str(), &info); }) == 0) return info;
  if (errno != ENOENT && errno != ENOTDIR && errno != ENAMETOOLONG) fail_read(path, "look at", errno);
  return std::nullopt;
}

void check_regular(const std::string& path, const struct stat& info) {
  TANDEM_USER_CHECK(!S_ISDIR(info.st_mode), path + ": is a directory, and a file is needed");
  TANDEM_USER_CHECK(S_ISREG(info.st_mode),
                    path + ": is no regular file (a pipe, a socket or a device); copy its content into one");
}

// Opens a regular file. Nothing else is opened even for a moment, since opening a pipe waits for its other end and
// opening a device may start it. If something takes the file's place between the two checks, the second refuses it.
int open_for_reading(const std::string& path, struct stat* info) {
  if (const std::optional<struct stat> before = look_at(path)) check_regular(path, *before);
  OwnedFd fd(retry_interrupted([&] { return ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC); }));
  if (fd.get() < 0) fail_read(path, "open", errno);
  if (::fstat(fd.get(), info) < 0) fail_read(path, "look at", errno);
  check_regular(path, *info);
  return fd.release();
}

// Returns `path`, or the first of its parents that exists.
std::string nearest_existing(const std::string& path) {
  fs::path at = fs::absolute(path);
  std::error_code error;
  while (!fs::exists(at, error) && at.has_relative_path()) at = at.parent_path();
  return at.string();
}

}  // namespace

std::string read_file(const std::string& path, int64_t max_bytes) {
  struct stat info {};
  const OwnedFd fd(open_for_reading(path, &info));
  std::string text;
  text.reserve(static_cast<size_t>(std::min<int64_t>(info.st_size, max_bytes)));
  char chunk[1 << 16];
  while (true) {
    const ssize_t n = retry_interrupted([&] { return file_calls().read(fd.get(), chunk, sizeof chunk); });
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

void check_directory(const std::string& path, const std::string& shown, const std::string& remedy) {
  if (directory_exists(path)) return;
  const char* const what = file_exists(path) ? "is a file, and a directory is needed" : "no such directory";
  throw UserError(shown + ": " + what + "; " + remedy);
}

std::string without_trailing_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

void make_directories(const std::string& path) {
  TANDEM_USER_CHECK(!path.empty(), "an empty name for a directory; give one");
  std::error_code unknown;  // ignored: where the path may not be searched, mkdir() gives the reason
  if (fs::is_directory(path, unknown)) return;
  const std::string trimmed = without_trailing_slashes(path);
  const std::string parent = parent_directory(trimmed);
  if (parent != trimmed) make_directories(parent);
  if (file_calls().mkdir(trimmed.c_str(), 0777) < 0) {
    const int error = errno;
    if (error == EEXIST && fs::is_directory(trimmed, unknown)) return;  // another process made it meanwhile
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
  struct stat info {};
  fd_ = open_for_reading(path, &info);
  size_bytes_ = info.st_size;
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
    const ssize_t n = retry_interrupted([&] {
      return file_calls().pread(fd_, buffer.data() + done, buffer.size() - done, offset + static_cast<int64_t>(done));
    });
    if (n < 0) fail_read(path_, "read", errno);
    TANDEM_USER_CHECK(n > 0, path_ + ": ends at byte", offset + static_cast<int64_t>(done), "but", buffer.size() - done,
                      "more bytes are needed; it is cut off: copy or download it again");
    done += static_cast<size_t>(n);
  }
}

int64_t bytes_freed_with(const std::string& path, const std::string& beside) {
  struct stat of_folder {};
  if (::stat(beside.c_str(), &of_folder) < 0) return 0;
  int64_t bytes = 0;
  const auto add = [&](const fs::path& entry) {
    struct stat info {};
    const bool is_known = ::lstat(entry.c_str(), &info) == 0 && info.st_dev == of_folder.st_dev;
    constexpr int64_t kUnit = 512;  // of st_blocks, whatever the file system's blocks are
    if (is_known && (S_ISDIR(info.st_mode) || info.st_nlink == 1)) bytes += info.st_blocks * kUnit;
  };
  add(path);
  std::error_code error;                                                 // what cannot be listed cannot be removed
  if (!fs::is_directory(fs::symlink_status(path, error))) return bytes;  // a link is removed, not what it names
  fs::recursive_directory_iterator at(path, error);
  for (const fs::recursive_directory_iterator end; !error && at != end; at.increment(error)) add(at->path());
  return bytes;
}

void check_writable_directory(const std::string& path, int64_t needed_bytes, const std::string& what_for,
                              int64_t replaced_bytes) {
  const std::string folder = nearest_existing(path);
  std::error_code unknown;  // writing reports what may not be looked at
  TANDEM_USER_CHECK(fs::is_directory(folder, unknown) || unknown,
                    folder + ": is a file, where " + path + " needs a directory; name another place");
  std::string probe;
  const OwnedFd fd(create_temporary(folder + "/.write-test", &probe));
  if (fd.get() < 0) fail_write(folder, "write into the directory", errno);
  // A full disk still creates names, so a byte is written too.
  const int error = write_all(fd.get(), "x", 1);
  file_calls().unlink(probe.c_str());
  if (error != 0) fail_write(folder, "write into the directory", error);
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) < 0) fail_write(folder, "ask for free space", errno);
  // This divides, since blocks times size may exceed 64 bits on some network file systems.
  const auto needed_blocks = static_cast<uint64_t>(std::max<int64_t>(needed_bytes - replaced_bytes, 0)) / info.f_frsize;
  const std::string replaced = replaced_bytes >> 20 == 0 ? ""
                                                         : ", and " + std::to_string(replaced_bytes >> 20) +
                                                               " more once this run has replaced what is there";
  TANDEM_ENV_CHECK(needed_blocks <= info.f_bavail, folder + ": about", needed_bytes >> 20, "MiB are needed" + what_for,
                   "and", (info.f_bavail * info.f_frsize) >> 20,
                   "MiB are free" + replaced + "; free space or write elsewhere");
}

}  // namespace tandem::base
