// Reads and writes the safetensors file format: eight bytes of header length, a JSON header that names each tensor's
// dtype, shape and byte range, then the bytes. The reader does not trust its input: it allocates nothing beyond the
// file's size, and no accepted header leads outside the file.
//
// It accepts what the official reader (0.8.0) accepts, except for what the specification forbids or no writer makes: a
// header that does not begin with '{', a name or metadata key given twice, an unknown field, a tensor written as a
// list, "__metadata__": null, more than 10^6 tensors, more than 32 dims, a dim above 2^63 - 1, a name above 4 kB.
// Tensors need not be aligned to their dtype.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"

namespace tandem::weights {

// Returns the bits of one element of a dtype as headers spell it ("F32": 32, "BF16": 16, "F4": 4); 0 if there is no
// such dtype.
int64_t safetensors_dtype_bits(std::string_view dtype);

// Returns a name from an untrusted file for a message: quoted, on one line and short.
std::string quoted_name(std::string_view name);

struct TensorInfo {
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t begin_byte = 0;  // [begin_byte, end_byte) from the end of the header
  int64_t end_byte = 0;
  int64_t num_bytes() const { return end_byte - begin_byte; }
};

struct SafetensorsHeader {
  std::map<std::string, TensorInfo> tensors;  // by name
  std::map<std::string, std::string> metadata;
};

// Reads the JSON text of a header whose file has `data_bytes` after it. The ranges of the result are gapless from 0 to
// data_bytes, disjoint, and as long as dtype and shape demand. Throws UserError with `file` and the defect.
SafetensorsHeader parse_safetensors_header(std::string_view json, int64_t data_bytes, const std::string& file);

// Holds an open file and its header. Bytes are read on demand, from any thread.
class SafetensorsFile {
 public:
  // Throws UserError when the file is missing, cut off or invalid.
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, TensorInfo>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  // Throws UserError when the file has no tensor of that name.
  const TensorInfo& tensor(const std::string& name) const;

  // Reads buffer.size() bytes of a tensor of this file, from its byte `offset` on.
  void read(const TensorInfo& tensor, int64_t offset, std::span<std::byte> buffer) const;

 private:
  base::ReadableFile file_;
  SafetensorsHeader header_;
  int64_t data_offset_ = 0;
};

// The bytes that are copied at a time between a file and memory that the file cannot reach: a conversion, or a device.
constexpr int64_t kStagingBytes = int64_t{4} << 20;

// Describes a tensor to write: little-endian, row-major bytes that stay valid during the call.
struct TensorBytes {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // in host memory; empty if `copy_out` is set
  // Copies out.size() bytes from `offset` on, for bytes that lie elsewhere. It is asked for kStagingBytes at a time.
  std::function<void(int64_t offset, std::span<std::byte> out)> copy_out = nullptr;

  int64_t num_bytes() const;  // product of dtype and shape
};

// Writes a file durably (base::DurableFile). Wider dtypes come first, otherwise in the order given, after a header
// padded to 8 bytes: so every tensor is aligned to its dtype. Throws EnvironmentError when the disk refuses; the path
// is then as it was.
void write_safetensors(const std::string& path, std::vector<TensorBytes> tensors,
                       const std::map<std::string, std::string>& metadata = {},
                       base::Durable durable = base::Durable::kByItself);

}  // namespace tandem::weights
