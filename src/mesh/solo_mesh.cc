// A mesh of one rank.
#include <utility>

#include "mesh/mesh.h"

namespace tandem::mesh {

namespace {

class SoloMesh final : public Mesh {
 public:
  explicit SoloMesh(std::shared_ptr<void> kept) : kept_(std::move(kept)) {}

  device::Communicator& host() const override { return *nobody_; }
  device::Communicator& savers() const override { return *nobody_; }
  Group tensor() const override { return {.device = *nobody_, .host = *nobody_}; }
  device::Communicator& tensor_savers() const override { return *nobody_; }
  Group data() const override { return tensor(); }

 private:
  const std::unique_ptr<device::Communicator> nobody_ = device::solo_communicator();
  const std::shared_ptr<void> kept_;
};

}  // namespace

std::unique_ptr<Mesh> solo_mesh(std::shared_ptr<void> kept) { return std::make_unique<SoloMesh>(std::move(kept)); }

}  // namespace tandem::mesh
