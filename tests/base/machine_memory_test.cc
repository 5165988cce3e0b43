// The memory that a process may use, under made-up machines and control groups.
#include "base/machine_memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "base/files.h"
#include "tests/base/temporary_directory.h"

namespace tandem::base {
namespace {

class MachineMemoryTest : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root() + path).parent_path());
    write_file_durably(root() + path, text);
  }
  std::string root() const { return folder_ / "root"; }
  MachineMemory read() const { return machine_memory(root()); }

 private:
  TemporaryDirectory folder_;
};

TEST_F(MachineMemoryTest, IsWhatTheMachineHasWithoutALimit) {
  EXPECT_EQ(read().bytes, 0) << "nothing to read: not known";
  write("/proc/meminfo", "MemTotal:       24684096 kB\nMemFree:        20005716 kB\n");
  EXPECT_EQ(read().bytes, int64_t{24684096} * 1024);
  EXPECT_EQ(read().limited_by, "MemTotal");
  write("/proc/self/cgroup", "0::/\n");
  write("/sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(read().limited_by, "MemTotal");
}

TEST_F(MachineMemoryTest, IsTheLeastLimitOfTheGroupsAbove) {
  write("/proc/meminfo", "MemTotal: 8192 kB\n");
  write("/proc/self/cgroup", "0::/outer/inner\n");
  write("/sys/fs/cgroup/outer/inner/memory.max", "max\n");
  write("/sys/fs/cgroup/outer/memory.max", "1048576\n");
  EXPECT_EQ(read().bytes, 1048576);
  EXPECT_EQ(read().limited_by, "cgroup");
  write("/sys/fs/cgroup/outer/inner/memory.max", "4096\n");
  EXPECT_EQ(read().bytes, 4096);
}

TEST_F(MachineMemoryTest, ReadsVersionOneToo) {
  write("/proc/meminfo", "MemTotal: 8192 kB\n");
  write("/proc/self/cgroup", "9:name=systemd:/x\n4:cpu,memory:/jobs/a\n1:cpu:/y\n0::/\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(read().limited_by, "MemTotal") << "version 1 writes no limit as a number";
  write("/sys/fs/cgroup/memory/jobs/a/memory.limit_in_bytes", "2097152\n");
  EXPECT_EQ(read().bytes, 2097152);
}

TEST_F(MachineMemoryTest, AProcessHasItsOwnAndItsShareOfFiles) {
  EXPECT_EQ(unshared_process_bytes(root()), 0);
  write("/proc/self/smaps_rollup",
        "Rss: 9000 kB\nPss: 800 kB\nPss_Anon: 300 kB\nPss_File: 100 kB\nPss_Shmem: 400 kB\n");
  EXPECT_EQ(unshared_process_bytes(root()), 400 * 1024);
  const int64_t before = unshared_process_bytes();
  const std::vector<char> touched(int64_t{32} << 20, 1);
  EXPECT_GE(unshared_process_bytes() - before, int64_t{30} << 20) << touched.back();
}

TEST_F(MachineMemoryTest, AProcessIsLookedThroughOnlyWhenItsResidentPagesHaveMoved) {
  const auto write_rollup = [&](int kib) {
    write("/proc/self/smaps_rollup", "Pss_Anon: " + std::to_string(kib) + " kB\n");
  };
  ProcessMemory process(root());
  write_rollup(3000);
  EXPECT_EQ(process.unshared_bytes(), 3000 * 1024);
  write_rollup(4000);
  EXPECT_EQ(process.unshared_bytes(), 4000 * 1024) << "a kernel that does not count is asked each time";
  write("/proc/self/status", "RssAnon:\t 4000 kB\nRssFile:\t 100 kB\nRssShmem:\t 50000 kB\n");
  EXPECT_EQ(process.unshared_bytes(), 4000 * 1024);
  write_rollup(5000);
  write("/proc/self/status", "RssAnon:\t 4800 kB\nRssFile:\t 200 kB\nRssShmem:\t 90000 kB\n");
  EXPECT_EQ(process.unshared_bytes(), 4800 * 1024) << "pages of no file are the process's own";
  write("/proc/self/status", "RssAnon:\t 3000 kB\nRssFile:\t 1100 kB\nRssShmem:\t 90000 kB\n");
  EXPECT_EQ(process.unshared_bytes(), 3000 * 1024) << "those of files have moved by less than a MiB";
  write("/proc/self/status", "RssAnon:\t 3000 kB\nRssFile:\t 1124 kB\nRssShmem:\t 90000 kB\n");
  EXPECT_EQ(process.unshared_bytes(), 5000 * 1024) << "and now by one";
  write_rollup(30000);
  write("/proc/self/status", "RssAnon:\t 35767 kB\nRssFile:\t 1124 kB\nRssShmem:\t 90000 kB\n");
  EXPECT_EQ(process.unshared_bytes(), (5000 + 32767) * 1024);
  write("/proc/self/status", "RssAnon:\t 35768 kB\nRssFile:\t 1124 kB\nRssShmem:\t 90000 kB\n");
  EXPECT_EQ(process.unshared_bytes(), 30000 * 1024) << "the others have moved by 32 MiB";
}

TEST_F(MachineMemoryTest, TheKernelCountsThisProcess) {
  ProcessMemory process;
  const int64_t before = process.unshared_bytes();
  const std::vector<char> touched(int64_t{4} << 20, 1);  // and their shadow, with a sanitizer
  const int64_t now = process.unshared_bytes();
  EXPECT_EQ(process.num_asked(), 1);
  EXPECT_GE(now - before, int64_t{3} << 20) << touched.back();
  EXPECT_LE(std::abs(now - unshared_process_bytes()), int64_t{1} << 20);
}

TEST_F(MachineMemoryTest, ThisMachineHasSome) { EXPECT_GT(machine_memory().bytes, int64_t{1} << 26); }

}  // namespace
}  // namespace tandem::base
