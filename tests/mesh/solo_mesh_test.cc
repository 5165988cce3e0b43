// Tests of the mesh of a run that is one process: it is there, and asks nobody.
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include "mesh/mesh.h"

namespace tandem::mesh {
namespace {

TEST(SoloMesh, IsTheConductorAndHearsItself) {
  const std::unique_ptr<Mesh> mesh = solo_mesh();
  EXPECT_TRUE(mesh->is_alone());
  EXPECT_TRUE(mesh->is_conductor());
  EXPECT_EQ(device::all_gather_text(mesh->host(), "mine"), std::vector<std::string>{"mine"});
  EXPECT_TRUE(device::any_of(mesh->host(), true));
  EXPECT_FALSE(device::any_of(mesh->savers(), false));
  device::all_gather(mesh->data().device, {{at::arange(3)}});
}

}  // namespace
}  // namespace tandem::mesh
