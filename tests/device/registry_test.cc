// Tests of the values of --device, and of the errors where a backend is not available.
#include "device/registry.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/files.h"
#include "tandem/error.h"
#include "tests/base/temporary_directory.h"

namespace tandem::device {
namespace {

TEST(Registry, ReadsADevice) {
  EXPECT_EQ(parse_device("cpu").backend, "cpu");
  for (const std::string backend : {"cuda", "npu"}) {
    for (const auto& [place, index] : {std::pair{"", 0}, {":0", 0}, {":7", 7}}) {
      const DeviceSpec spec = parse_device(backend + place);
      EXPECT_EQ(spec.backend, backend) << place;
      EXPECT_EQ(spec.index, index) << backend << place;
    }
  }
}

TEST(Registry, RefusesWhatIsNoDevice) {
  for (const char* text :
       {"", "gpu", "cpu:0", "npu:", "cuda:", "cuda:-1", "cuda:x", "cuda:1x", "cuda:99999999999", "CUDA", ":1"}) {
    try {
      parse_device(text);
      FAIL() << text;
    } catch (const UserError& error) {
      EXPECT_EQ(std::string(error.what()), fmt::format("--device {}: must be cpu, cuda, cuda:N, npu or npu:N", text));
    }
  }
}

TEST(Registry, MakesTheCpuBackend) {
  const std::unique_ptr<Ops> ops = make_ops({}, {.isa = "scalar", .num_threads = 1});
  EXPECT_EQ(ops->name(), "cpu/scalar");
  EXPECT_EQ(ops->device(), at::kCPU);
}

// The pool runs all loops that matter. LibTorch's run on OpenMP's threads, which wait for one that has no core.
TEST(Registry, TheCpuBackendLeavesLibTorchOneThread) {
  at::set_num_threads(2);
  const std::unique_ptr<Ops> ops = make_ops({}, {.num_threads = 2});
  EXPECT_EQ(ops->num_threads(), 2);
  EXPECT_EQ(at::get_num_threads(), 1);
}

TEST(Registry, LooksForAModuleBesideTheProgramAndInItsBuildFolder) {
  const base::TemporaryDirectory folder;
  base::make_directories(folder / "src/cli");
  base::make_directories(folder / "src/device/cuda");
  EXPECT_EQ(module_path(folder / "src/cli", "cuda"), "");
  // Installed from wheels, the program is in tandem/bin and its module in tandem_cuda.
  base::make_directories(folder / "tandem/bin");
  base::make_directories(folder / "tandem_cuda");
  base::write_file_durably(folder / "tandem_cuda/libtandem_cuda.so", "");
  EXPECT_EQ(module_path(folder / "tandem/bin", "cuda"), folder / "tandem_cuda/libtandem_cuda.so");
  base::write_file_durably(folder / "src/device/cuda/libtandem_cuda.so", "");
  EXPECT_EQ(module_path(folder / "src/cli", "cuda"), folder / "src/device/cuda/libtandem_cuda.so");
  base::write_file_durably(folder / "src/cli/libtandem_cuda.so", "");
  EXPECT_EQ(module_path(folder / "src/cli", "cuda"), folder / "src/cli/libtandem_cuda.so");
}

// No machine has so many: whatever is missing here (module, libraries, driver, device) is an error of one line.
TEST(Registry, SaysWhatIsMissing) {
  try {
    make_ops(parse_device("cuda:4096"), {});
    FAIL();
  } catch (const EnvironmentError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("--device cuda: ")) << error.what();
    EXPECT_NE(std::string(error.what()).find("--device cpu"), std::string::npos) << error.what();
  } catch (const UserError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("--device cuda:4096: ")) << error.what();
  }
}

}  // namespace
}  // namespace tandem::device
