// The layer that a block computes, as its pieces see it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "device/expert_exchange.h"
#include "device/ops.h"
#include "model/config.h"
#include "model/family.h"
#include "model/linear.h"
#include "model/residual_stream.h"
#include "model/routing_loss.h"
#include "model/routing_sink.h"

namespace tandem::model::decoder {

// All that it names outlives the block.
struct Layer {
  const ModelConfig& config;
  const Family& family;
  const device::Ops& ops;
  const ResidualStream& stream;
  const GradientSlot& sink;
  RoutingSink* const& routing_sink;                // the one that is set at present, or null
  RoutingLoss* const& routing_loss;                // the same
  device::ExpertExchange* const& expert_exchange;  // the same
  const AdapterWindows& adapters;
  const AdapterDropout* const& adapter_dropout;  // the one that is set at present, or null
  int64_t index;
  // Returns "layers.3.qkv" for "qkv".
  std::string packed_name(const std::string& tensor) const { return "layers." + std::to_string(index) + "." + tensor; }
  // Makes a matrix of this layer with its adapter, if it has one. `cut` says how several tensor ranks share it. An
  // empty `bias` means that it has none.
  Linear linear(const std::string& tensor, Cut cut, const std::string& bias = "") const;
  // Returns the adapter of that matrix of this layer: one without windows if it has none.
  Adapter adapter(const std::string& tensor) const;
};

// Returns the stream of dropout of a matrix's first column, such as "qkv"; its other columns, of which there are fewer
// than 2^32, have the numbers that follow.
uint64_t dropout_stream(int64_t layer, std::string_view tensor);

}  // namespace tandem::model::decoder
