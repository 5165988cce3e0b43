// How many devices may be asked for, and by which library they talk.
#include "config/mesh_options.h"

#include <gtest/gtest.h>

#include "config/train_config.h"
#include "tandem/error.h"

namespace tandem::config {
namespace {

std::string refusal(std::vector<std::string> flags, const std::string& device = "cpu") {
  MeshOptions mesh;
  base::Options options;
  mesh.visit(options);
  try {
    options.parse(std::move(flags));
    mesh.check(device);
    mesh.check_names_no_device(device);
    return "";
  } catch (const UserError& error) {
    return error.what();
  }
}

TEST(MeshOptions, WhatContradictsItselfIsRefused) {
  EXPECT_EQ(refusal({}), "");
  EXPECT_EQ(refusal({"--actor-num-gpus-per-node", "4", "--num-gpus-per-node", "4"}), "");
  EXPECT_EQ(
      refusal({"--actor-num-gpus-per-node", "4", "--num-gpus-per-node", "8"}),
      "--num-gpus-per-node 8 and --actor-num-gpus-per-node 4: all devices of a machine train; give both the same, "
      "or leave the first one out");
  EXPECT_EQ(refusal({"--actor-num-gpus-per-node", "2"}, "cuda:1"),
            "--device cuda:1 with 2 processes: a number names one device; give --device cuda, and CUDA_VISIBLE_DEVICES "
            "says which ones there are");
  EXPECT_EQ(refusal({}, "cuda:1"), "");
}

TEST(MeshOptions, ALibraryThatDoesNotMoveTheDevicesTensorsIsRefused) {
  EXPECT_EQ(refusal({"--distributed-backend", "gloo"}), "");
  EXPECT_EQ(refusal({"--distributed-backend", "nccl"}, "cuda"), "");
  EXPECT_EQ(refusal({"--distributed-backend", "gloo"}, "cuda"),
            "--distributed-backend gloo: does not move tensors of --device cuda; leave it out, and nccl does");
  EXPECT_EQ(refusal({"--distributed-backend", "nccl"}),
            "--distributed-backend nccl: does not move tensors of --device cpu; leave it out, and gloo does");
  EXPECT_NE(refusal({"--distributed-backend", "mpi"}), "");
  EXPECT_NE(refusal({"--distributed-timeout-minutes", "0"}), "");
}

// How many devices there are is not an input of the results.
TEST(MeshOptions, ResultsDependOnHowAModelIsSpreadAlone) {
  MeshOptions mesh;
  base::Options options;
  mesh.visit(options);
  const std::map<std::string, std::string> results = options.result_options();
  EXPECT_EQ(results.size(), 2U);
  EXPECT_TRUE(results.contains("tensor-model-parallel-size"));
  EXPECT_EQ(results.at("sequence-parallel"), "false");
}

}  // namespace
}  // namespace tandem::config
