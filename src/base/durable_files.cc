// Files and directories that appear whole: they are written under an unguessable name, synced and renamed. They are
// declared in base/files.h.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/file_parts.h"
#include "base/files.h"

namespace tandem::base {
namespace {

// Syncs everything under `path`, files before the directory that names them.
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

}  // namespace

DurableFile::DurableFile(const std::string& path, Durable durable) : path_(path) {
  if (durable == Durable::kWithDirectory) {
    temporary_ = path_;
    fd_ = retry_interrupted(
        [&] { return file_calls().open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666); });
  } else {
    fd_ = create_temporary(path_, &temporary_);
  }
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
    temporary_ = temporary_name(final_path_);
    made = file_calls().mkdir(temporary_.c_str(), 0777);
  } while (made < 0 && errno == EEXIST);
  if (made < 0) fail_write(final_path_, "create", errno);
}

DurableDirectory::~DurableDirectory() {
  if (committed_) return;
  try {
    remove_tree(temporary_);
  } catch (const std::runtime_error&) {
    // A destructor can do nothing about a failure, and the name marks the file as a temporary.
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
      // The file system cannot exchange names, so two renames do it. If the process is killed between them, both
      // directories are complete and the old one is found under its name with ".old".
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
  struct stat info = {};
  if (::lstat(path.c_str(), &info) < 0 && errno == ENOENT) return;  // a link that leads nowhere is there
  const std::string aside = temporary_name(path);
  if (file_calls().rename(path.c_str(), aside.c_str()) < 0) fail_write(path, "put aside", errno);
  sync_directory(parent_directory(path));
  remove_tree(aside);
}

void remove_temporaries(const std::string& directory) {
  for (const std::string& name : list_directory(directory))
    if (name_without_temporary_mark(name) != name) remove_tree(directory + "/" + name);
}

void link_durably(const std::string& target, const std::string& path) {
  const std::string temporary = temporary_name(path);
  if (file_calls().symlink(target.c_str(), temporary.c_str()) < 0) fail_write(path, "make the link", errno);
  if (file_calls().rename(temporary.c_str(), path.c_str()) < 0) fail_write(path, "put the link in place", errno);
  sync_directory(parent_directory(path));
}

void truncate_durably(const std::string& path, int64_t size_bytes) {
  const OwnedFd fd(retry_interrupted(
      [&] { return file_calls().open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0); }));
  if (fd.get() < 0) fail_write(path, "open", errno);
  if (file_calls().ftruncate(fd.get(), size_bytes) < 0) fail_write(path, "cut", errno);
  if (retry_interrupted([&] { return file_calls().fsync(fd.get()); }) < 0) fail_write(path, "sync", errno);
}

void sync_durably(const std::string& path) {
  const OwnedFd fd(retry_interrupted(
      [&] { return file_calls().open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0); }));
  if (fd.get() < 0) fail_write(path, "open", errno);
  if (retry_interrupted([&] { return file_calls().fsync(fd.get()); }) < 0) fail_write(path, "sync", errno);
}

}  // namespace tandem::base
