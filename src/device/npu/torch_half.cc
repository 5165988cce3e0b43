// The half of the NPU module that needs torch_npu: it starts it in an interpreter of its own, gives it our memory, and
// makes LibTorch's operations of the device. It calls torch_npu by its documented Python functions and by LibTorch's
// interfaces for any device, and links nothing of it, since its classes change between its releases.
#include "device/npu/torch_half.h"

#include <ATen/Context.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

#include "base/check.h"
#include "device/npu/acl_calls.h"
#include "device/npu/python.h"
#include "device/npu/rungs.h"
#include "device/npu/tensor_memory.h"
#include "device/ops_aten.h"

namespace tandem::device {
namespace {

// Starts torch_npu. The order matters: the allocator must be there before the first tensor, and the device before the
// options that are its own. `warnings` and `logging` are quiet, because imports talk about packages that we do not use.
constexpr const char* kStart = R"(
import importlib.metadata, importlib.util, logging, os, warnings
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
def find(package):
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ImportError(f"{executable} has no package {package}")
    return os.path.dirname(spec.origin)
folder = os.path.join(find("torch"), "lib")
if not os.path.samefile(folder, libtorch_folder):
    raise ImportError(f"the program runs with the LibTorch in {libtorch_folder}, and {executable} has one in {folder}")
find("torch_npu")
torch_npu_version = importlib.metadata.version("torch_npu")
if torch_npu_version != built_for:
    raise ImportError(f"{executable} has torch_npu {torch_npu_version}, and the module was built for {built_for}")

import torch, torch_npu
logging.disable(logging.NOTSET)
torch.utils.deterministic.fill_uninitialized_memory = False
memory = torch_npu.npu.memory
allocator = memory.NPUPluggableAllocator(library, "tandem_npu_allocate", "tandem_npu_free")
memory.change_current_allocator(allocator)
torch_npu.npu.set_device(int(index))
torch_npu.npu.set_compile_mode(jit_compile=False)
torch_npu.npu.config.allow_internal_format = False
torch_npu.npu.matmul.allow_hf32 = False
torch_npu.npu.conv.allow_hf32 = False
)";

// Sets the highest level of deterministic computation that is accepted. torch_npu 2.11.0 takes any number here, and
// supports up to 2. A level that CANN refuses fails when something computes.
constexpr const char* kSetLevel = R"(
import torch, torch_npu
levels = [level for level in (3, 2, 1) if level <= int(most_level) and (level < 3 or torch_npu_version != "2.11.0")]
level, refusals = "", []
for candidate in levels:
    try:
        torch_npu.npu.set_deterministic_level(candidate)
        ones = torch.ones(2, 2).to(f"npu:{index}")
        torch.mm(ones, ones).cpu()
        level = str(candidate)
        break
    except (RuntimeError, ValueError) as refusal:
        refusals.append(str(refusal))
if not level:
    raise RuntimeError(f"no level of deterministic computation is accepted: {refusals[-1]}")
)";

// The path of the library that holds an address.
std::filesystem::path library_of(const void* address) {
  Dl_info info = {};
  TANDEM_CHECK(dladdr(address, &info) != 0);
  return std::filesystem::weakly_canonical(info.dli_fname);
}

const npu::AclCalls& acl() {
  static const npu::AclCalls calls = npu::load_acl_calls();
  return calls;
}

// Set when torch_npu starts, for the life of the process: its allocator may be asked until the end.
NpuTensorMemory* tensor_memory = nullptr;
int device_index = 0;

void synchronize() {
  c10::impl::VirtualGuardImpl(at::kPrivateUse1).synchronizeDevice(static_cast<c10::DeviceIndex>(device_index));
}

// torch_npu has two sets of operators, and takes the older where an option of CANN says that it may compile: then
// results may be wrong in silence. So one product of known numbers is made first.
void check_an_operator(at::Device device, const std::string& stack) {
  const at::Tensor a = at::tensor({1.0F, 2.0F, 3.0F, 4.0F}).reshape({2, 2});
  const at::Tensor b = at::tensor({5.0F, 6.0F, 7.0F, 8.0F}).reshape({2, 2});
  const at::Tensor expected = at::tensor({19.0F, 22.0F, 43.0F, 50.0F}).reshape({2, 2});
  at::Tensor product;
  std::string why = "two matrices of known numbers have another product";
  try {
    product = at::mm(a.to(device), b.to(device)).cpu();
  } catch (const std::exception& error) {
    why = error.what();
    why = why.substr(0, why.find('\n'));
  }
  TANDEM_ENV_CHECK(
      product.defined() && at::equal(product, expected),
      fmt::format("--device npu:{}: {}, so the operators of {} cannot be used; install the kernels of this "
                  "CANN for this NPU, and unset what sets jit_compile",
                  device.index(), why, stack));
}

// Runs a script in the interpreter. An exception of Python is one line, which says where to look.
std::map<std::string, std::string> in_python(const char* script, int index,
                                             const std::map<std::string, std::string>& values) {
  try {
    return run_python({.executable = TANDEM_NPU_PYTHON, .library = TANDEM_NPU_LIBPYTHON}, script, values);
  } catch (const EnvironmentError& error) {
    throw EnvironmentError(
        fmt::format("--device npu:{}: torch_npu does not start: {}; see that {} imports torch_npu, and "
                    "build again with `make npu`, or give --device cpu",
                    index, error.what(), TANDEM_NPU_PYTHON));
  }
}

std::map<std::string, std::string> start_torch_npu(int index) {
  if (tensor_memory == nullptr) tensor_memory = new NpuTensorMemory(acl(), index, synchronize);
  device_index = index;
  const auto* const of_libtorch = reinterpret_cast<const void*>(&at::globalContext);
  return in_python(kStart, index,
                   {{"executable", TANDEM_NPU_PYTHON},
                    {"libtorch_folder", library_of(of_libtorch).parent_path().string()},
                    {"built_for", TANDEM_NPU_TORCH_NPU},
                    {"library", library_of(reinterpret_cast<const void*>(&synchronize)).string()},
                    {"index", std::to_string(index)}});
}

std::unique_ptr<Ops> make_ops(int index, int num_threads, const std::string& soc_and_cann, const std::string& rung) {
  static const std::map<std::string, std::string> started = start_torch_npu(index);
  TANDEM_CHECK_EQ(index, device_index, "a process computes on one device");
  const std::string version = started.at("torch_npu_version");
  const std::string level = in_python(kSetLevel, index,
                                      {{"most_level", std::to_string(npu::most_level(rung))},
                                       {"torch_npu_version", version},
                                       {"index", std::to_string(index)}})
                                .at("level");
  const at::Device device(at::kPrivateUse1, static_cast<c10::DeviceIndex>(index));
  // The name goes into checkpoints: another type of NPU, another library, level or way to compute may give other bits.
  const std::string stack = fmt::format("{}, torch_npu {}, level {}{}", soc_and_cann, version, level,
                                        rung == npu::kRungs.front() ? "" : ", " + rung);
  check_an_operator(device, stack);
  std::unique_ptr<Ops> ops =
      make_aten_ops(device, fmt::format("npu/aten on {}", stack), num_threads, npu::call_shape(rung));
  tensor_memory->release_unused();
  return ops;
}

void set_tensor_source(AllocatorHook* source) { tensor_memory->set_source(source); }
void release_unused() { tensor_memory->release_unused(); }

}  // namespace
}  // namespace tandem::device

// torch_npu's allocator calls these two, by their names in kStart.
extern "C" __attribute__((visibility("default"))) void* tandem_npu_allocate(size_t bytes, int /*device*/,
                                                                            void* /*stream*/) {
  return tandem::device::tensor_memory->allocate(static_cast<int64_t>(bytes));
}
extern "C" __attribute__((visibility("default"))) void tandem_npu_free(void* address, size_t /*bytes*/, int /*device*/,
                                                                       void* /*stream*/) {
  if (address != nullptr) tandem::device::tensor_memory->free(static_cast<std::byte*>(address));
}

extern "C" __attribute__((visibility("default"))) const tandem::device::TorchHalf* tandem_npu_torch_half() {
  static constexpr tandem::device::TorchHalf kHalf = {.make_ops = tandem::device::make_ops,
                                                      .torch_npu = TANDEM_NPU_TORCH_NPU,
                                                      .set_tensor_source = tandem::device::set_tensor_source,
                                                      .synchronize = tandem::device::synchronize,
                                                      .release_unused = tandem::device::release_unused};
  return &kHalf;
}
