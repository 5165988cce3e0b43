// A gradient sink that is a function, for tests that look at a backward pass themselves.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "model/linear.h"

namespace tandem::model {

class FunctionSink final : public GradientSink {
 public:
  using Function = std::function<GradientTarget(const std::string& packed_name)>;
  explicit FunctionSink(Function function) : function_(std::move(function)) {}
  GradientTarget of(const std::string& packed_name) override { return function_(packed_name); }

 private:
  Function function_;
};

}  // namespace tandem::model
