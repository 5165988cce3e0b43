// Writes and reads the checkpoints of a run: all that it needs to resume bit for bit.
//
//   RUN/checkpoints/step_000100/   state.json, shard_00000.safetensors (one a rank), MANIFEST.json
//   RUN/checkpoints/latest         one line, the name of the one to resume from
//
// A checkpoint is written under a temporary name, its manifest last; its files and the directory are synced, it gets
// its name, that is synced, and then the pointer is replaced. So at every instant `latest` names a whole one, whatever
// happens; and whatever happens to the bytes later is found by the manifest's checksums before any of them is used.
// Ranks that hold parts of one state write it together: each its own shard, rank 0 everything else. A reader finds any
// box of a tensor, whichever rank wrote it, so a run with another number of ranks resumes from it. No torch: bytes in,
// bytes out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/manifest.h"
#include "checkpoint/saving_ranks.h"
#include "weights/safetensors.h"

namespace tandem::checkpoint {

// Opens a checkpoint and finds it whole. Its tensors are read by name.
class Checkpoint {
 public:
  // Reads the manifest and compares size and checksum of every file. Throws UserError with the file that is damaged or
  // missing.
  explicit Checkpoint(const std::string& directory);

  const std::string& directory() const { return directory_; }
  int64_t step() const { return manifest_.step; }
  const base::Json& state() const { return state_; }
  const Manifest& manifest() const { return manifest_; }
  // Returns the checksum of MANIFEST.json, which has those of all other files: two checkpoints with the same
  // checksum are the same.
  const std::string& checksum() const { return checksum_; }
  // Returns what Checkpoints::identity() was when Checkpoints::open() opened this one.
  const std::string& identity_when_opened() const { return identity_when_opened_; }

  // Reads the box [begin, begin + shape) of a tensor, row-major, whichever pieces it lies in. Throws UserError when
  // there is no such tensor, it has another dtype, or the box leaves it.
  void read(const std::string& name, const std::string& dtype, const std::vector<int64_t>& begin,
            const std::vector<int64_t>& shape, std::span<std::byte> out) const;

 private:
  friend class Checkpoints;

  std::string directory_, checksum_, identity_when_opened_;
  Manifest manifest_;
  base::Json state_;
  std::map<std::string, weights::SafetensorsFile> shards_;
};

// Describes a box of a tensor that a rank saves: it begins at `begin`, its size is bytes.shape, and the tensor's is
// whole_shape.
struct SavedTensor {
  weights::TensorBytes bytes;  // named after the whole tensor
  std::vector<int64_t> whole_shape, begin;
};

class Checkpoints {
 public:
  // Refers to `run_path`/checkpoints and reads nothing yet.
  explicit Checkpoints(const std::string& run_path);

  // Writes a checkpoint, then the pointer to it. Each of `ranks` calls it with its own tensors, which together are
  // whole; rank 0's state is written. Throws EnvironmentError, on all ranks, if a disk refuses; earlier checkpoints are
  // then as they were.
  void save(int64_t step, const base::Json& state, std::vector<SavedTensor> tensors,
            const SavingRanks& ranks = {}) const;
  // Removes the oldest, so that `count` remain; never the one that the pointer names.
  void keep_latest(int64_t count) const;
  // Returns to an earlier one: the pointer names it, and later ones are removed.
  void rewind(int64_t step) const;
  // Removes all checkpoints, for another run.
  void clear() const;

  std::vector<int64_t> steps() const;  // steps of the existing checkpoints, ascending; they may be damaged
  // Opens the checkpoint that the pointer names (the newest if there is no pointer yet), or that of `step`. Throws
  // UserError when it is damaged or absent, with the defect and the newest good one.
  Checkpoint open(std::optional<int64_t> step) const;
  // Returns whether nothing was ever saved here, so that a run without a checkpoint can be told so.
  bool empty() const;
  // Returns a text that changes whenever a checkpoint is saved or removed, or the pointer moves. It reads manifests
  // only.
  std::string identity() const;

  const std::string& folder() const { return folder_; }
  std::string path(int64_t step) const;

 private:
  std::optional<int64_t> pointed_to() const;
  void point_to(int64_t step) const;
  [[noreturn]] void refuse(const std::string& what) const;

  std::string folder_;
};

}  // namespace tandem::checkpoint
