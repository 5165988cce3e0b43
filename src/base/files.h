// Has all file access that matters: reads with clear errors, and writes that survive a power cut. Reading a file that
// the user named throws UserError (exit code 2); a failed write, and a read that the disk itself fails, throw
// EnvironmentError (exit code 3). Messages name path, operation and errno's text.
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

// Returns the whole file. Throws UserError when it is missing, is no regular file (a directory, a pipe), or is larger
// than `max_bytes`.
std::string read_file(const std::string& path, int64_t max_bytes = int64_t{1} << 30);
// Throws UserError "permission denied" if a folder on the way may not be searched, and EnvironmentError if the disk
// does not tell, so that no caller reports "no such file" for it.
bool file_exists(const std::string& path);  // true for anything but a directory
bool directory_exists(const std::string& path);
// Throws UserError "`shown`: ...; `remedy`" if there is no directory of that name, or a file has it. `shown` is the
// path as the user typed it, with its flag.
void check_directory(const std::string& path, const std::string& shown, const std::string& remedy);
void make_directories(const std::string& path);                    // throws EnvironmentError on failure
std::vector<std::string> list_directory(const std::string& path);  // sorted names
std::string without_trailing_slashes(std::string path);            // "/" stays "/"

// Holds a file open for positioned reads. It is movable.
class ReadableFile {
 public:
  explicit ReadableFile(const std::string& path);
  ReadableFile(ReadableFile&& other) noexcept;
  ReadableFile& operator=(ReadableFile&& other) noexcept;
  ~ReadableFile();
  const std::string& path() const { return path_; }
  int64_t size() const { return size_bytes_; }
  // Reads exactly buffer.size() bytes at `offset`. Throws UserError when the file ends before that.
  void read_at(int64_t offset, std::span<std::byte> buffer) const;

 private:
  std::string path_;
  int fd_ = -1;
  int64_t size_bytes_ = 0;
};

// Says who makes a new file durable: the file itself, or the DurableDirectory that it is written into, whose commit()
// syncs all its files.
enum class Durable : uint8_t { kByItself, kWithDirectory };

// Makes a new file that appears under its name only when commit() has made it durable: temporary name, write, fsync,
// rename, fsync of the directory. If it is destroyed without commit(), the temporary is removed and the old file is
// untouched. In a directory that is itself not yet visible (kWithDirectory) it is written under its final name.
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
  std::string path_, temporary_;  // equal with kWithDirectory
  int fd_ = -1;
};

// Makes a new directory with the same promise: write into path(), then commit() syncs every file and renames the
// directory to its final name. An existing, non-empty directory of that name is a UserError, unless `replace` is set:
// then the two are swapped in one step.
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

// Removes a file or a directory with all in it. A missing path is no error.
void remove_tree(const std::string& path);
// Does the same, but renames the path first, durably, so that no reader finds a half-removed tree under this name.
void remove_durably(const std::string& path);
// Removes what killed processes left in a directory: unfinished files and half-removed directories. Call it only while
// no other process writes there (DirectoryLock).
void remove_temporaries(const std::string& directory);
// Returns the final name of a temporary file; any other name is returned as it is.
std::string name_without_temporary_mark(const std::string& name);
// Creates or replaces a symbolic link in one step.
void link_durably(const std::string& target, const std::string& path);
// Truncates a file to `size_bytes`.
void truncate_durably(const std::string& path, int64_t size_bytes);
// Makes a file durable that another writer wrote.
void sync_durably(const std::string& path);

// Holds the lock file DIRECTORY/lock for as long as it lives. Throws EnvironmentError when another process holds it.
// The kernel releases the lock when the process ends, however it ends.
class DirectoryLock {
 public:
  static constexpr const char* kName = "lock";
  explicit DirectoryLock(const std::string& directory);
  // Throws the same EnvironmentError, and takes no lock and makes no file.
  static void check_free(const std::string& directory);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  std::string path_;
  int fd_ = -1;
};

// Appends to a text file (metrics, samples) with one write per line, so a reader never sees half a line. A write that
// fails leaves no half line; a half line that is already there is ended before the next line begins.
class LineFile {
 public:
  explicit LineFile(const std::string& path, bool truncate);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;
  void write_line(std::string_view line);  // adds '\n'; kept lines are written first
  // Does the same, but keeps lines that the disk refuses and writes them, in order, before the next line or at sync().
  // Returns the reason why they could not be written; "" if none is kept.
  std::string write_or_keep_line(std::string_view line);
  int64_t num_kept() const;
  void sync();  // throws if a kept line is still refused
  const std::string& path() const { return path_; }

 private:
  void append(std::string_view line);
  void write_kept();

  std::string path_;
  int fd_ = -1;
  mutable std::mutex mutex_;  // keeps lines in order
  std::deque<std::string> kept_;
};

// Returns the bytes that removing this file or folder, with all that is in it, gives back to the file system of the
// folder `beside`. Nothing is counted that lies on another one or has a further name.
int64_t bytes_freed_with(const std::string& path, const std::string& beside);

// Checks that a directory can be written, or can be created, with `needed_bytes` free; `replaced_bytes` become free
// before they are needed. Otherwise throws EnvironmentError with the reason and `what_for`, the use of the bytes, or
// UserError if the path leads through a file. Leaves nothing behind; if the path is missing, its nearest existing
// parent is checked.
void check_writable_directory(const std::string& path, int64_t needed_bytes, const std::string& what_for = "",
                              int64_t replaced_bytes = 0);

}  // namespace tandem::base
