// The ways in which an NPU may compute, from the one that is tried first: nobody knows of a card, before it has
// answered `tandem device --check`, under which of them a row of a product has the same bits in every batch. No torch.
#pragma once

#include <array>
#include <string_view>

#include "device/npu/footprint.h"

namespace tandem::device::npu {

// best: the highest level of deterministic computation that torch_npu and CANN accept (3 is "batch consistency");
// level2: at most level 2; rowsN: products of N rows, to which fewer are padded; host: products on the host.
inline constexpr std::array<const char*, 5> kRungs = {"best", "level2", "rows128", "rows64", "host"};

constexpr int most_level(std::string_view rung) { return rung == "best" ? 3 : 2; }

constexpr AtenCallShape call_shape(std::string_view rung) {
  AtenCallShape call = kCallShape;
  if (rung == "rows128") call.linear_rows = 128;
  if (rung == "rows64") call.linear_rows = 64;
  call.multiplies_on_host = rung == "host";
  return call;
}

}  // namespace tandem::device::npu
