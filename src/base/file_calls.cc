#include "base/file_calls.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

namespace tandem::base {

namespace {

FileCalls system_calls;
FileCalls* in_use = &system_calls;

}  // namespace

int FileCalls::open(const char* path, int flags, mode_t mode) { return ::open(path, flags, mode); }
ssize_t FileCalls::write(int fd, const void* data, size_t size) { return ::write(fd, data, size); }
int FileCalls::fsync(int fd) { return ::fsync(fd); }
int FileCalls::ftruncate(int fd, off_t size) { return ::ftruncate(fd, size); }
int FileCalls::close(int fd) { return ::close(fd); }
int FileCalls::rename(const char* from, const char* to) { return ::rename(from, to); }
int FileCalls::exchange(const char* a, const char* b) { return ::renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE); }
int FileCalls::symlink(const char* target, const char* path) { return ::symlink(target, path); }
int FileCalls::mkdir(const char* path, mode_t mode) { return ::mkdir(path, mode); }
int FileCalls::unlink(const char* path) { return ::unlink(path); }
int FileCalls::rmdir(const char* path) { return ::rmdir(path); }
int FileCalls::stat(const char* path, struct stat* info) { return ::stat(path, info); }
ssize_t FileCalls::read(int fd, void* data, size_t size) { return ::read(fd, data, size); }
ssize_t FileCalls::pread(int fd, void* data, size_t size, off_t offset) { return ::pread(fd, data, size, offset); }

FileCalls& file_calls() { return *in_use; }

ReplacedFileCalls::ReplacedFileCalls(FileCalls& calls) : before_(in_use) { in_use = &calls; }
ReplacedFileCalls::~ReplacedFileCalls() { in_use = before_; }

}  // namespace tandem::base
