// Checks which flags a model refuses.
#include "session/read_model.h"

#include <gtest/gtest.h>

#include "tandem/error.h"

namespace tandem::session {
namespace {

TEST(ReadModel, StopTokensAreTheModels) {
  model::ModelConfig model;
  model.vocab = 512;
  config::RolloutOptions options;
  options.stop_token_ids = {0, 511};
  check_stop_tokens(options, model);
  options.stop_token_ids = {3, 99999};
  EXPECT_THROW(check_stop_tokens(options, model), UserError);
  options.stop_token_ids = {-1};
  EXPECT_THROW(check_stop_tokens(options, model), UserError);
}

}  // namespace
}  // namespace tandem::session
