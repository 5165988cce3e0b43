// All file access that matters: reading with clear errors, and writing that survives a power cut.
// Reading what the user named throws UserError (exit 2); failing writes throw EnvironmentError (exit 3). Messages name
// path, operation and errno text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::base {

// The whole of a file; UserError when it is missing, no regular file (a directory, a pipe), or above `max_bytes`.
std::string read_file(const std::string& path, int64_t max_bytes = int64_t{1} << 30);
// UserError "permission denied" where a folder on the way may not be searched, so that nobody says "no such file" of
// it.
bool file_exists(const std::string& path);  // anything but a directory
bool directory_exists(const std::string& path);
void make_directories(const std::string& path);                    // EnvironmentError when it cannot
std::vector<std::string> list_directory(const std::string& path);  // names, sorted
std::string without_trailing_slashes(std::string path);            // "/" stays

// A file opened for positioned reads. Movable.
class ReadableFile {
 public:
  explicit ReadableFile(const std::string& path);
  ReadableFile(ReadableFile&& other) noexcept;
  ReadableFile& operator=(ReadableFile&& other) noexcept;
  ~ReadableFile();
  const std::string& path() const { return path_; }
  int64_t size() const { return size_bytes_; }
  // Reads exactly buffer.size() bytes at `offset`; UserError when the file ends before.
  void read_at(int64_t offset, std::span<std::byte> buffer) const;

 private:
  std::string path_;
  int fd_ = -1;
  int64_t size_bytes_ = 0;
};

// Who makes a new file durable: itself, or the DurableDirectory that it is written into, whose commit() does it for
// all.
enum class Durable : uint8_t { kByItself, kWithDirectory };

// A new file that appears under its name only when commit() has made it durable: temporary name, write, fsync, rename,
// fsync of the directory. Destroyed without commit(): the temporary is removed, the old file untouched. In a directory
// that is itself not yet visible (kWithDirectory) it is written straight under its name.
class DurableFile {
 public:
  explicit DurableFile(const std::string& path, Durable durable = Durable::kByItself);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  void commit();

 private:
  std::string path_, temporary_;  // the same with kWithDirectory
  int fd_ = -1;
};

// The same for a directory of files: write into path(), then commit() syncs every file and renames the directory to the
// final name. That must not exist (or be empty): UserError; with `replace` it may, and is swapped in one step.
class DurableDirectory {
 public:
  DurableDirectory(const std::string& final_path, bool replace);
  ~DurableDirectory();
  DurableDirectory(const DurableDirectory&) = delete;
  DurableDirectory& operator=(const DurableDirectory&) = delete;
  const std::string& path() const { return temporary_; }
  void commit();

 private:
  std::string final_path_, temporary_;
  bool replace_ = false, committed_ = false;
};

void write_file_durably(const std::string& path, std::string_view text, Durable durable = Durable::kByItself);

// Removes a file or a directory with all in it; nothing there is no error.
void remove_tree(const std::string& path);
// The same, but first under another name, durably: no reader finds half of it under this one.
void remove_durably(const std::string& path);
// Removes what killed processes left in a directory: unfinished files and half-removed directories. Only where no other
// process writes (DirectoryLock).
void remove_temporaries(const std::string& directory);
// The name that a temporary was to get; any other name as it is.
std::string name_without_temporary_mark(const std::string& name);
// A symbolic link, replaced in one step.
void link_durably(const std::string& target, const std::string& path);
// Cuts a file to `size_bytes`.
void truncate_durably(const std::string& path, int64_t size_bytes);
// Makes a file durable that others wrote.
void sync_durably(const std::string& path);

// DIRECTORY/lock, held while this lives; UserError when another process holds it. The kernel lets go of it when the
// process ends, however it ends.
class DirectoryLock {
 public:
  static constexpr const char* kName = "lock";
  explicit DirectoryLock(const std::string& directory);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  std::string path_;
  int fd_ = -1;
};

// An append-only text file (metrics, samples): one write per line, so a reader never sees half of one. A write that
// fails leaves no half line; half a line that was there is ended before the next begins.
class LineFile {
 public:
  explicit LineFile(const std::string& path, bool truncate);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;
  void write_line(std::string_view line);  // adds '\n'; lines that were kept go first
  // The same, but lines that the disk refuses are kept, and go out in their order before the next one or at sync().
  // Returns why they could not be written; "": nothing is kept.
  std::string write_or_keep_line(std::string_view line);
  int64_t num_kept() const;
  void sync();  // throws where a kept line is still refused
  const std::string& path() const { return path_; }

 private:
  void append(std::string_view line);
  void write_kept();

  std::string path_;
  int fd_ = -1;
  mutable std::mutex mutex_;  // of the order of lines
  std::deque<std::string> kept_;
};

// Whether a directory can be written, or created where it is not there, with `needed_bytes` free; EnvironmentError says
// why not, and `what_for` the bytes are. Leaves nothing behind: of a missing path, its nearest parent is what is tried.
void check_writable_directory(const std::string& path, int64_t needed_bytes, const std::string& what_for = "");

}  // namespace tandem::base
