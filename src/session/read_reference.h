// Reads the model that --ref-load names. No weight is read.
#pragma once

#include <string>

#include "model/config.h"

namespace tandem::session {

// Returns the reference: it has the shape, dtype and shard of `policy`, has no adapter, and takes from the directory's
// config.json what changes the forward pass: rotation, windows, epsilon, query scales. Throws UserError for a directory
// that is no model's, and for one whose model is plainly another than the policy.
model::ModelConfig read_reference(const std::string& directory, const model::ModelConfig& policy);

// Throws UserError, with the key of config.json, where the reference and the policy differ in what their tensors are or
// in how many experts a token has.
void check_reference_shape(const std::string& directory, const model::ModelConfig& policy);

// Throws UserError if the two would compute differently with the same weights: with --ref-update-interval the reference
// takes the policy's.
void check_reference_forward(const std::string& directory, const model::ModelConfig& policy);

}  // namespace tandem::session
