#include "run/ranks.h"

namespace tandem::run {

checkpoint::SavingRanks saving_ranks(const mesh::Mesh& mesh) {
  return {.rank = mesh.rank(), .size = mesh.size(), .all_gather = [&mesh](const std::string& mine) {
            return device::all_gather_text(mesh.savers(), mine);
          }};
}

}  // namespace tandem::run
