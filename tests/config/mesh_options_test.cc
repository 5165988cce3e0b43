// The options of devices are checked: how many may be asked for, and which library connects them.
#include "config/mesh_options.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "config/train_config.h"
#include "tests/base/thrown.h"

namespace tandem::config {
namespace {

std::string refusal_of_ranks(std::vector<std::string> flags, const std::string& device = "cpu") {
  MeshOptions mesh;
  options::Options options;
  mesh.visit(options);
  return base::thrown_by([&] {
    options.parse(std::move(flags));
    mesh.check(device);
    mesh.check_ranks(device);
  });
}

TEST(MeshOptions, WhatContradictsItselfIsRefused) {
  EXPECT_EQ(refusal_of_ranks({}), "");
  EXPECT_EQ(refusal_of_ranks({"--actor-num-gpus-per-node", "4", "--num-gpus-per-node", "4"}), "");
  EXPECT_EQ(
      refusal_of_ranks({"--actor-num-gpus-per-node", "4", "--num-gpus-per-node", "8"}),
      "--num-gpus-per-node 8 and --actor-num-gpus-per-node 4: all devices of a machine train; give both the same, "
      "or leave the first one out");
  EXPECT_EQ(refusal_of_ranks({"--actor-num-gpus-per-node", "2"}, "cuda:1"),
            "--device cuda:1 with 2 processes: a number names one device; give --device cuda, and CUDA_VISIBLE_DEVICES "
            "says which ones there are");
  EXPECT_EQ(refusal_of_ranks({}, "cuda:1"), "");
  EXPECT_EQ(refusal_of_ranks({"--actor-num-gpus-per-node", "3", "--tensor-model-parallel-size", "2"}),
            "--tensor-model-parallel-size 2: a copy of the model lies on devices of one machine, and "
            "--actor-num-gpus-per-node 3 is no multiple of it; change one of the two");
}

TEST(MeshOptions, SeveralRanksWhereNobodyTriedThemHaveToBeAskedFor) {
  const std::string reason =
      "no run on several NPUs has been reported yet, so nothing shows that HCCL moves their tensors right; use one "
      "device, or give --unchecked-ranks to try it and report what happens";
  EXPECT_EQ(refusal_of_ranks({"--actor-num-gpus-per-node", "8"}, "npu"), "--device npu with 8 processes: " + reason);
  EXPECT_EQ(refusal_of_ranks({"--rollout-join-address", "host:1", "--actor-num-gpus-per-node", "2",
                              "--tensor-model-parallel-size", "2"},
                             "npu"),
            "--device npu with 2 processes: " + reason);
  EXPECT_EQ(refusal_of_ranks({"--actor-num-gpus-per-node", "8", "--unchecked-ranks"}, "npu"), "");
  EXPECT_EQ(refusal_of_ranks({}, "npu:3"), "");
  EXPECT_EQ(refusal_of_ranks({"--actor-num-gpus-per-node", "8"}, "cuda"), "");
}

TEST(MeshOptions, ALibraryThatDoesNotMoveTheDevicesTensorsIsRefused) {
  EXPECT_EQ(refusal_of_ranks({"--distributed-backend", "gloo"}), "");
  EXPECT_EQ(refusal_of_ranks({"--distributed-backend", "nccl"}, "cuda"), "");
  EXPECT_EQ(refusal_of_ranks({"--distributed-backend", "gloo"}, "cuda"),
            "--distributed-backend gloo: does not move tensors of --device cuda; leave it out");
  EXPECT_EQ(refusal_of_ranks({"--distributed-backend", "hccl"}, "npu"), "");
  EXPECT_EQ(refusal_of_ranks({"--distributed-backend", "nccl"}, "npu"),
            "--distributed-backend nccl: does not move tensors of --device npu; leave it out");
  EXPECT_EQ(refusal_of_ranks({"--distributed-backend", "nccl"}),
            "--distributed-backend nccl: does not move tensors of --device cpu; leave it out");
  EXPECT_NE(refusal_of_ranks({"--distributed-backend", "mpi"}), "");
  EXPECT_NE(refusal_of_ranks({"--distributed-timeout-minutes", "0"}), "");
}

std::string refusal_of_rollout(std::vector<std::string> flags, bool colocate) {
  MeshOptions mesh;
  options::Options options;
  mesh.visit(options);
  return base::thrown_by([&] {
    options.parse(std::move(flags));
    mesh.check_rollout(colocate);
  });
}

TEST(MeshOptions, DevicesThatTrainSampleTooOrOthersDo) {
  EXPECT_EQ(refusal_of_rollout({}, true), "");
  EXPECT_EQ(refusal_of_rollout({}, false),
            "--colocate or --rollout-num-gpus: give one of them; the devices that train sample too, or so many others "
            "do");
  EXPECT_EQ(refusal_of_rollout({"--actor-num-gpus-per-node", "4", "--rollout-num-gpus", "2"}, true),
            "--rollout-num-gpus 2 with --colocate: the 4 that train sample too; leave one of the two out");
  EXPECT_EQ(refusal_of_rollout({"--rollout-num-gpus", "2"}, true),
            "--rollout-num-gpus 2 with --colocate: the one that trains samples too; leave one of the two out");
  EXPECT_EQ(refusal_of_rollout({"--actor-num-gpus-per-node", "4", "--rollout-num-gpus", "4"}, true), "");
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"--rollout-join"}, {"--rollout-join-address", "host:1"}, {"--rollout-listen", "0"}}) {
    EXPECT_EQ(
        refusal_of_rollout(flags, true),
        flags.front() +
            ": with --colocate the devices that train sample, and no other can join; give the flags of a run with "
            "--rollout-num-gpus");
    std::vector<std::string> apart = flags;
    apart.insert(apart.end(), {"--rollout-num-gpus", "1"});
    EXPECT_EQ(refusal_of_rollout(apart, false), "");
  }
  EXPECT_EQ(refusal_of_rollout({"--rollout-num-gpus", "1", "--rollout-join-address", "127.0.0.1"}, false),
            "--rollout-join-address 127.0.0.1: is no HOST:PORT; the run says at its start where it listens");
}

TEST(MeshOptions, AnEngineIsSpreadAsTheTrainerIs) {
  const auto flags = [](const char* per_engine, const char* tensor) {
    return std::vector<std::string>{"--actor-num-gpus-per-node",     "4",       "--tensor-model-parallel-size", tensor,
                                    "--rollout-num-gpus-per-engine", per_engine};
  };
  EXPECT_EQ(refusal_of_rollout(flags("1", "1"), true), "");
  EXPECT_EQ(refusal_of_rollout(flags("2", "2"), true), "");
  EXPECT_EQ(
      refusal_of_rollout(flags("1", "2"), true),
      "--rollout-num-gpus-per-engine 1 and --tensor-model-parallel-size 2: trainer and engine share their parts of "
      "the model; give both the same, or leave the first one out");
  EXPECT_NE(refusal_of_rollout(flags("2", "1"), true), "");
  EXPECT_EQ(refusal_of_rollout({"--rollout-num-gpus", "2", "--rollout-num-gpus-per-engine", "1"}, false), "");
  EXPECT_NE(refusal_of_rollout({"--rollout-num-gpus", "4", "--rollout-num-gpus-per-engine", "2"}, false), "");
  const auto separate = [](const char* devices) {
    return std::vector<std::string>{"--rollout-num-gpus", devices, "--tensor-model-parallel-size", "2"};
  };
  EXPECT_EQ(refusal_of_rollout(separate("4"), false), "");
  EXPECT_EQ(refusal_of_rollout(separate("3"), false),
            "--rollout-num-gpus 3 with --tensor-model-parallel-size 2: so many devices hold one copy of the model "
            "between them, to sample as to train; give a multiple of 2");
}

TEST(MeshOptions, ExpertsAreSharedByDevicesOfOneMachineThatHoldAllWeights) {
  const auto flags = [](std::vector<std::string> more) {
    more.emplace_back("--rollout-expert-parallel");
    return more;
  };
  const std::vector<std::string> two = {"--actor-num-gpus-per-node", "2"};
  EXPECT_EQ(refusal_of_ranks(flags(two)), "");
  EXPECT_EQ(refusal_of_ranks(flags(two), "cuda"), "");
  EXPECT_EQ(refusal_of_rollout(flags(two), true), "");
  EXPECT_EQ(refusal_of_ranks(flags({})),
            "--rollout-expert-parallel: one device has nobody to share experts with; leave it out, or give "
            "--actor-num-gpus-per-node");
  EXPECT_EQ(refusal_of_ranks(flags({"--actor-num-gpus-per-node", "2", "--tensor-model-parallel-size", "2"})),
            "--rollout-expert-parallel with --tensor-model-parallel-size 2: each device has a part of every expert "
            "already; leave one of the two out");
  EXPECT_EQ(refusal_of_ranks(flags({"--actor-num-nodes", "2"})),
            "--rollout-expert-parallel with --actor-num-nodes 2: experts are shared within one machine; leave one of "
            "the two out");
  EXPECT_EQ(refusal_of_ranks(flags({"--actor-num-gpus-per-node", "2", "--unchecked-ranks"}), "npu"),
            "--rollout-expert-parallel with --device npu: nobody has tried it there; leave it out");
  EXPECT_EQ(refusal_of_rollout(flags({"--rollout-num-gpus", "2"}), false),
            "--rollout-expert-parallel without --colocate: devices that only sample come and go, and do not decode in "
            "step; leave it out, or give --colocate");
}

// The number of devices is not an input of the results.
TEST(MeshOptions, ResultsDependOnHowAModelIsSpreadAlone) {
  MeshOptions mesh;
  options::Options options;
  mesh.visit(options);
  const std::map<std::string, std::string> results = options.result_options();
  EXPECT_EQ(results.size(), 2U);
  EXPECT_TRUE(results.contains("tensor-model-parallel-size"));
  EXPECT_EQ(results.at("sequence-parallel"), "false");
}

}  // namespace
}  // namespace tandem::config
