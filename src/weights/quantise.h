// Quantises a matrix as bitsandbytes does (device/quantisation.h has the formats).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "device/quantised_matrix.h"
#include "device/thread_pool.h"

namespace tandem::weights {

// Writes one part of a quantised matrix. Its weights come in order, in pieces of any size; the codes of NF4 are those
// of bitsandbytes.functional.quantize_4bit (blocksize 64, quant_type "nf4", compress_statistics), the ones of int8
// those of bitsandbytes.nn.Int8Params: each weight is rounded to float16 first. A number between two values becomes the
// nearer, and the lower one where both are as near (int8: the even one).
//
// The mean of the absolute maxima, which is the offset of NF4, is summed in float64 and then rounded.
class QuantisedWriter {
 public:
  // The part lies in host memory, in the bytes of its matrix. `name` is the tensor's for messages: "FILE: tensor "x"".
  // The threads are borrowed; their number changes no bit.
  QuantisedWriter(const device::QuantisedPart& part, std::byte* matrix, std::string name, device::ThreadPool& threads);

  // Throws UserError for a number that is not finite, or, for int8, that is beyond float16.
  void add(std::span<const float> weights);
  // Ends the part, of which all weights have come. NF4: the absolute maxima get their codes.
  void finish();

 private:
  // Encodes whole units, or the last one of NF4, which may be shorter.
  void encode(std::span<const float> weights);
  void check_finite(std::span<const float> weights) const;
  // Encode one unit, which begins with the weight of this number.
  void encode_nf4(std::span<const float> block, int64_t first);
  void encode_int8(std::span<const float> row, int64_t first);
  void encode_maxima(int64_t nested);  // those that share this scale
  float* floats(int64_t byte) const { return reinterpret_cast<float*>(matrix_ + byte); }
  uint8_t* codes(int64_t byte) const { return reinterpret_cast<uint8_t*>(matrix_ + byte); }

  device::QuantisedPart part_;
  std::byte* matrix_;
  std::string name_;
  size_t unit_;                 // weights that are encoded together: a block, or a row
  std::vector<float> pending_;  // the beginning of a unit
  device::ThreadPool& threads_;
  std::vector<float> maxima_;  // NF4: of the blocks until now
  int64_t num_encoded_ = 0;
};

// Quantises the part of a matrix that begins at this row: `add` gives the writer all of its weights. `name` is the
// tensor's for messages: "FILE: tensor "x"". The part is made in host memory, as by write_part().
void quantise_part(const device::QuantisedMatrix& matrix, int64_t row_begin, const std::string& name,
                   device::ThreadPool& threads, const std::function<void(QuantisedWriter& writer)>& add);

// Has `write` fill the part of a matrix that begins at this row, in host memory: in its place, or, where the matrix
// lies on a device, in memory of its size that is copied there.
void write_part(const device::QuantisedMatrix& matrix, int64_t row_begin,
                const std::function<void(const device::QuantisedPart& part, std::byte* bytes)>& write);

}  // namespace tandem::weights
