// The model, with Qwen3's chat template, whose tokenizer the tests of a session use.
#pragma once

#include <cstdint>

namespace tandem::session {

constexpr const char* kModel = "tests/golden/models/qwen3-tied";
constexpr int32_t kEndOfText = 471, kImEnd = 473;

}  // namespace tandem::session
