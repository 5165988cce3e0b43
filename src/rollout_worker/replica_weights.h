// The weights of a replica (the trainers that hold one copy of the model between them, a part on each), as its first
// rank gives all of them to processes that only sample: shown, so that they copy them from the devices' memory, or in
// pieces.
//
// What the first rank sends of another's part it reads from that rank's memory, which it maps; where it cannot, as on
// the CPU, it keeps a copy in its host's memory. So it alone serves who joins while the others wait for samples.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mesh/mesh.h"
#include "sampling/weight_feed.h"
#include "session/model_session.h"
#include "weights/store.h"

namespace tandem::rollout_worker {

class ReplicaWeights final : public sampling::WeightFeed {
 public:
  // All ranks of the replica create theirs together. Their sessions have weights, and are borrowed. A piece has at most
  // `piece_bytes`.
  ReplicaWeights(const session::ModelSession& session, const mesh::Group& replica, int64_t piece_bytes);

  // Returns the bytes of the host's memory that copies of other ranks' parts take.
  int64_t copied_bytes() const;

  // Every rank of the replica calls it. Only the first one has to pass `begin` and `finish`.
  void update(const std::function<void()>& begin = {}, const std::function<void()>& finish = {}) override;

  // Only the first rank calls the functions that follow, while no rank changes its part.
  bool has_adapter() const override { return &session_.trained() != &session_.base(); }
  std::string hash() const override { return session_.base().info().hash; }
  uint64_t version(bool is_base) const override { return store(kFirst, is_base).version(); }
  std::vector<std::string> words(bool is_base) const override { return is_base ? base_words_ : trained_words_; }
  const std::vector<uint64_t>& checksums(bool is_base) override;
  void send(bool is_base, const SendPiece& send) const override;

 private:
  static constexpr int kFirst = 0;
  // Another rank's part, as the first rank has it.
  struct Part {
    at::Tensor mapped;  // memory of the rank; undefined: the store owns a copy
    weights::WeightStore store;
  };

  const weights::WeightStore& store(int part, bool is_base) const;
  weights::WeightStore empty_part(int part, at::Device device) const;
  bool map_parts();
  void gather_checksums();
  void copy_parts();
  void wait_for_device() const;
  void wait_for_all() const;

  const session::ModelSession& session_;
  const mesh::Group replica_;
  const int64_t piece_bytes_;
  std::vector<std::string> trained_words_, base_words_;
  bool is_shown_ = false;                            // whether every part is shown
  bool is_copied_ = false;                           // whether the first rank has copies of the others' parts
  std::vector<Part> others_;                         // on the first rank: the parts after its own
  std::map<bool, std::vector<uint64_t>> checksums_;  // checksums of the current weights, by is_base
};

}  // namespace tandem::rollout_worker
