// The CPU's virtual memory: the questions of every Vmm, and memory that crosses to another process.
#include "device/cpu/cpu_vmm.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "device/cpu/cpu_host_memory.h"
#include "tests/device/vmm_conformance.h"

namespace tandem::device {

namespace {

constexpr int64_t kTotalBytes = int64_t{64} << 20;

VmmBackend cpu_backend(const std::string& name, bool can_alias) {
  return {.name = name,
          .make_vmm = [can_alias] { return std::make_unique<CpuVmm>(kTotalBytes, can_alias); },
          .make_host_memory = [](Vmm&) { return std::make_unique<CpuHostMemory>(); },
          .faults_end_process = true};
}

INSTANTIATE_TEST_SUITE_P(Cpu, VmmConformance,
                         testing::Values(cpu_backend("Aliasing", true), cpu_backend("MappedOnce", false)),
                         vmm_backend_name);

// One byte of ordinary data carries the descriptor.
void send_descriptor(int socket, int descriptor) {
  char byte = 0, control[CMSG_SPACE(sizeof descriptor)] = {};
  iovec data = {.iov_base = &byte, .iov_len = 1};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof descriptor);
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  ASSERT_EQ(::sendmsg(socket, &message, 0), 1);
}

int receive_descriptor(int socket) {
  int descriptor = -1;
  char byte = 0, control[CMSG_SPACE(sizeof descriptor)] = {};
  iovec data = {.iov_base = &byte, .iov_len = 1};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(socket, &message, 0) != 1 || CMSG_FIRSTHDR(&message) == nullptr) return -1;
  std::memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
  return descriptor;
}

TEST(CpuVmm, AnExtentIsSharedWithAnotherProcess) {
  int sockets[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  const pid_t child = ::fork();  // before there is an extent: nothing comes by inheritance
  ASSERT_GE(child, 0);
  if (child == 0) {
    CpuVmm vmm(kTotalBytes);
    const int64_t bytes = vmm.granularity_bytes();
    const int descriptor = receive_descriptor(sockets[1]);
    const std::optional<ExtentId> extent = vmm.import_extent(descriptor, bytes);
    std::byte* const address = vmm.reserve_addresses(bytes);
    bool good = extent && vmm.map(address, *extent) && vmm.set_access(address, bytes, Access::kReadWrite);
    good = good && address[1] == std::byte{11};
    if (good) address[2] = std::byte{22};
    ::_exit(good ? 0 : 1);
  }
  CpuVmm vmm(kTotalBytes);
  const int64_t bytes = vmm.granularity_bytes();
  std::byte* const address = vmm.reserve_addresses(bytes);
  const ExtentId extent = vmm.create_extent(bytes).value();
  ASSERT_TRUE(vmm.map(address, extent) && vmm.set_access(address, bytes, Access::kReadWrite));
  address[1] = std::byte{11};
  const int descriptor = vmm.export_extent(extent);
  send_descriptor(sockets[0], descriptor);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(address[2], std::byte{22});
  for (const int fd : {descriptor, sockets[0], sockets[1]}) ::close(fd);
  vmm.unmap(address, bytes);
  vmm.release_extent(extent);
  vmm.free_addresses(address, bytes);
}

// Bytes of memory that all processes share (memfd is part of it), as the kernel counts them.
int64_t shared_pages() {
  int64_t size = 0, resident = 0, shared = 0;
  FILE* const file = ::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%ld %ld %ld", &size, &resident, &shared) != 3) return -1;
  std::fclose(file);
  return shared;
}

TEST(CpuVmm, BytesComeFromTheSystemAndGoBack) {
  CpuVmm vmm(kTotalBytes);
  const int64_t bytes = int64_t{32} << 20;
  const ExtentId extent = vmm.create_extent(bytes).value();
  std::byte* const address = vmm.reserve_addresses(bytes);
  ASSERT_TRUE(vmm.map(address, extent) && vmm.set_access(address, bytes, Access::kReadWrite));
  std::memset(address, 1, static_cast<size_t>(bytes));
  const int64_t mapped_pages = shared_pages();
  vmm.unmap(address, bytes);
  EXPECT_GE(mapped_pages - shared_pages(), bytes / vmm.granularity_bytes() * 9 / 10);
  vmm.release_extent(extent);
  vmm.free_addresses(address, bytes);
}

TEST(CpuHostMemory, FreeIsOfWhatWasAllocated) {
  CpuHostMemory memory;
  std::byte* const host = memory.allocate(4096);
  ASSERT_NE(host, nullptr);
  EXPECT_ANY_THROW(memory.free(host, 8192));
  EXPECT_ANY_THROW(memory.free(host + 1, 4096));
  memory.free(host, 4096);
  EXPECT_ANY_THROW(memory.free(host, 4096));
  EXPECT_EQ(memory.allocate(int64_t{1} << 60), nullptr) << "more than any host has";
}

}  // namespace
}  // namespace tandem::device
