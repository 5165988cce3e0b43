#include "base/file_parts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/files.h"

namespace tandem::base {
namespace {

constexpr std::string_view kTemporaryMark = ".tmp-";
constexpr size_t kTemporaryDigits = 16;
// DurableDirectory's two renames use it: the old directory has this suffix while the new one gets its name.
constexpr std::string_view kOld = ".old";

std::string errno_text(int error) { return std::generic_category().message(error); }

uint64_t random_bits() {
  uint64_t bits = 0;
  const ssize_t n = retry_interrupted([&] { return ::getrandom(&bits, sizeof bits, 0); });
  TANDEM_ENV_CHECK(n == sizeof bits, "random bits for the name of a file: cannot be had:", errno_text(errno));
  return bits;
}

}  // namespace

void fail_read(const std::string& path, const char* operation, int error) {
  const std::string what = path + ": cannot " + operation + ": " + errno_text(error);
  switch (error) {
    case EACCES:
    case EPERM: throw UserError(what + "; you need the right to read it and to search the folders above it");
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case ESRCH:  // a process that has ended, in /proc
      throw UserError(what);
    case EMFILE:
    case ENFILE: throw EnvironmentError(what + "; raise the number of files that may be open (ulimit -n)");
    default: throw EnvironmentError(what + "; the disk or the file system failed: start again once it answers");
  }
}

void fail_write(const std::string& path, const char* operation, int error) {
  std::string remedy;
  if (error == ENOSPC || error == EDQUOT) remedy = "; free space or write elsewhere";
  if (error == EROFS || error == EACCES || error == EPERM) remedy = "; choose a directory that you may write to";
  throw EnvironmentError(path + ": cannot " + operation + ": " + errno_text(error) + remedy);
}

OwnedFd::~OwnedFd() {
  if (fd_ >= 0) file_calls().close(fd_);
}

int OwnedFd::release() { return std::exchange(fd_, -1); }

int write_all(int fd, const char* data, size_t size, size_t* num_written) {
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
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

// Some file systems cannot sync a directory and return EINVAL.
void sync_directory(const std::string& path) {
  const OwnedFd fd(
      retry_interrupted([&] { return file_calls().open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); }));
  if (fd.get() < 0) fail_write(path, "open the directory", errno);
  if (retry_interrupted([&] { return file_calls().fsync(fd.get()); }) < 0 && errno != EINVAL) {
    fail_write(path, "sync the directory", errno);
  }
}

std::string temporary_name(const std::string& path) {
  return fmt::format("{}{}{:016x}", path, kTemporaryMark, random_bits());
}

int create_temporary(const std::string& beside, std::string* path) {
  int fd = -1;
  do {
    *path = temporary_name(beside);
    fd = retry_interrupted(
        [&] { return file_calls().open(path->c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666); });
  } while (fd < 0 && errno == EEXIST);
  return fd;
}

// Only a name exactly as temporary_name() makes it counts as one of our temporaries: a user may have called a file
// "x.tmp-1".
std::string name_without_temporary_mark(const std::string& name) {
  const std::string_view whole(name);
  const std::string_view text = whole.ends_with(kOld) ? whole.substr(0, whole.size() - kOld.size()) : whole;
  if (text.size() <= kTemporaryMark.size() + kTemporaryDigits) return name;
  const size_t stem = text.size() - kTemporaryMark.size() - kTemporaryDigits;
  const std::string_view digits = text.substr(stem + kTemporaryMark.size());
  const bool is_temporary = text.substr(stem, kTemporaryMark.size()) == kTemporaryMark &&
                            digits.find_first_not_of("0123456789abcdef") == std::string_view::npos;
  return is_temporary ? name.substr(0, stem) : name;
}

}  // namespace tandem::base
