// The answers of `tandem device --check`, kept in a file of the user: of a backend whose exactness only the device
// itself can tell (BackendRow::rungs), a run asks them before it uses the device. No torch.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace tandem::device {

// Names and versions of what computes (registry.h): answers are of one stack.
using Stack = std::vector<std::pair<std::string, std::string>>;

struct KeptCheck {
  std::string rung;       // way to compute that was asked about last, from BackendRow::rungs
  bool is_right = false;  // stack, memory and numbers are as they must be
  bool is_exact = false;  // and a row has the same bits in every batch and each time
  std::string first_no;   // first question that was answered by no: "rows: rms_norm"
};

// Returns nullopt where none is kept for that stack.
std::optional<KeptCheck> read_kept_check(const Stack& stack);
// Keeps them, with all answers. Throws EnvironmentError if the file cannot be written.
void keep_check(const Stack& stack, const KeptCheck& check, const base::Json& answers);
// Returns the file, which may not be there.
std::string kept_check_path(const Stack& stack);

}  // namespace tandem::device
