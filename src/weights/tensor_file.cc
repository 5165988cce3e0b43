#include "weights/tensor_file.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <array>

#include "base/check.h"
#include "device/transfer.h"

namespace tandem::weights {
namespace {

struct DtypePair {
  at::ScalarType torch;
  const char* name;
};
constexpr std::array<DtypePair, 7> kPairs = {{
    {at::kFloat, "F32"},
    {at::kDouble, "F64"},
    {at::kBFloat16, "BF16"},
    {at::kHalf, "F16"},
    {at::kLong, "I64"},
    {at::kInt, "I32"},
    {at::kByte, "U8"},
}};

}  // namespace

const char* safetensors_dtype(at::ScalarType dtype) {
  for (const DtypePair& pair : kPairs) {
    if (pair.torch == dtype) return pair.name;
  }
  TANDEM_CHECK(false, "no safetensors name for dtype", c10::toString(dtype));
}

at::ScalarType torch_dtype(const std::string& dtype, const std::string& file_for_message) {
  for (const DtypePair& pair : kPairs) {
    if (pair.name == dtype) return pair.torch;
  }
  throw UserError(fmt::format("{}: dtype {} is not supported; convert it to a wider one", file_for_message, dtype));
}

TensorBytes tensor_bytes(const std::string& name, const at::Tensor& tensor) {
  TANDEM_CHECK(tensor.is_contiguous(), name, "must be contiguous");
  TensorBytes result{
      .name = name, .dtype = safetensors_dtype(tensor.scalar_type()), .shape = tensor.sizes().vec(), .bytes = {}};
  if (device::is_on_host(tensor)) {
    result.bytes = {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
  } else {
    result.copy_out = [bytes = tensor.view(-1).view(at::kByte)](int64_t offset, std::span<std::byte> out) {
      const auto size = static_cast<int64_t>(out.size());
      at::from_blob(out.data(), {size}, at::TensorOptions(at::kByte)).copy_(bytes.narrow(0, offset, size));
    };
  }
  return result;
}

}  // namespace tandem::weights
