// The words for what a machine without layers of the sandbox leaves open.
#include "worker/sandbox_layers.h"

#include <gtest/gtest.h>

namespace tandem::worker {
namespace {

TEST(SandboxLayers, SayWhatIsOpenWithoutThem) {
  // A container whose /proc has covered parts: each grader has a scratch folder of limited size all the same.
  EXPECT_EQ(what_is_open({"process namespace (Operation not permitted)"}),
            "start any number of processes, see other processes");
  EXPECT_EQ(what_is_open({"own scratch folder (Operation not permitted)"}), "fill the disk");
  EXPECT_EQ(what_is_open({"limit of processes (No such file or directory)"}), "start any number of processes");
  EXPECT_EQ(what_is_open({"namespaces of each grader (No space left on device)"}), "see other graders");
  EXPECT_EQ(what_is_open({"namespaces (Operation not permitted)"}),
            "change modes and times of your files, fill the disk, start any number of processes, see other processes");
  EXPECT_EQ(what_is_open({"Landlock (Function not implemented)"}), "write into your named pipes");
  EXPECT_EQ(what_is_open({"own /dev (Operation not permitted)"}),
            "do nothing more that we know of, with one layer fewer in its way");
}

}  // namespace
}  // namespace tandem::worker
