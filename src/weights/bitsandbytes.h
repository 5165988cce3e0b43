// Matrices that bitsandbytes quantised and transformers saved: which tensors one is made of, and its bytes. The formats
// are those of device/quantisation.h, so a part is filled with the bytes of the file. No torch.
//
//   NF4    NAME: the codes; beside it NAME.absmax, NAME.nested_absmax, NAME.nested_quant_map, NAME.quant_map, and
//          NAME.quant_state.bitsandbytes__nf4, a JSON text, of which the offset is read (Params4bit,
//          QuantState.as_dict)
//   int8   NAME, which is X.weight: the codes; beside it X.SCB, and by older versions X.weight_format (Linear8bitLt)
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "device/quantisation.h"
#include "weights/checkpoint_files.h"

namespace tandem::weights {

// Returns the names of what lies beside a tensor that is stored in this quantisation, and may.
std::vector<std::string> names_beside(const std::string& hf_name, device::Quantisation quantisation);

// Returns whether a matrix of the files is stored in this quantisation.
bool is_stored_in(const CheckpointFiles& files, const Slice& slice, device::Quantisation quantisation);

// Checks what headers tell of such a tensor, [rows, columns]. Throws UserError for one that is missing or has another
// dtype or shape, and for X.weight_format that is not 0: such weights are re-ordered.
void check_stored(const CheckpointFiles& files, const Slice& slice, device::Quantisation quantisation);

// Fills the part that a slice is, in the bytes of its matrix. Throws UserError for another table of values, or a text
// without an offset.
void read_stored(const CheckpointFiles& files, const std::string& hf_name, const device::QuantisedPart& part,
                 std::byte* matrix);

}  // namespace tandem::weights
