// The manifest of a checkpoint lists its files with size and checksum, and the place of each tensor in them. A tensor
// has one global shape and any number of pieces, boxes of it in the files of different ranks, so that a run with
// another number of ranks finds its part.
//
// The text is one line of JSON and, on a second line, the checksum of the first: no bit of it can change unseen.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::checkpoint {

struct ManifestFile {
  int64_t bytes = 0;
  std::string checksum;  // base::file_checksum
};

struct TensorPiece {
  std::string file;
  std::vector<int64_t> begin, shape;  // box in the tensor's coordinates
};

struct ManifestTensor {
  std::string dtype;  // spelled as in safetensors
  std::vector<int64_t> shape;
  std::vector<TensorPiece> pieces;  // disjoint; together the whole tensor
};

struct Manifest {
  int64_t step = 0;  // finished rollouts
  std::map<std::string, ManifestFile> files;
  std::map<std::string, ManifestTensor> tensors;
};

std::string manifest_text(const Manifest& manifest);
// Parses the text of a manifest of this format. Throws UserError "PATH: what" for anything else.
Manifest parse_manifest(std::string_view text, const std::string& path);
// Merges the manifests of several ranks, whose pieces need not be whole tensors, into one manifest. Throws UserError as
// above; `path` is where the result will be.
Manifest merge_manifests(const std::vector<std::string>& texts, const std::string& path);

}  // namespace tandem::checkpoint
