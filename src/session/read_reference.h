// Reads the model that --ref-load names. No weight is read.
#pragma once

#include <string>

#include "model/config.h"

namespace tandem::session {

// Returns the reference: the shape, dtype and part of `policy` without an adapter, with what config.json of the
// directory says of the forward beside (rotation, windows, epsilon, scales). Throws UserError for a directory that is
// no model's, and for one whose model is plainly another than the policy.
model::ModelConfig read_reference(const std::string& directory, const model::ModelConfig& policy);

// Throws UserError, with the key of config.json, where the reference and the policy differ in what their tensors are or
// in how many experts a token has.
void check_reference_shape(const std::string& directory, const model::ModelConfig& policy);

// Does the same where they compute otherwise with the same weights: --ref-update-interval would give the reference the
// policy's.
void check_reference_forward(const std::string& directory, const model::ModelConfig& policy);

}  // namespace tandem::session
