// What a checkpoint says of itself: its files with size and checksum, and where each tensor lies in them. A tensor has
// one global shape and any number of pieces, boxes of it in the files of different ranks, so that a run of another
// number of ranks finds its part.
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
  std::vector<int64_t> begin, shape;  // of the box, in the tensor's coordinates
};

struct ManifestTensor {
  std::string dtype;  // as safetensors writes it
  std::vector<int64_t> shape;
  std::vector<TensorPiece> pieces;  // disjoint; together the whole tensor
};

struct Manifest {
  int64_t step = 0;  // finished rollouts
  std::map<std::string, ManifestFile> files;
  std::map<std::string, ManifestTensor> tensors;
};

std::string manifest_text(const Manifest& manifest);
// UserError "PATH: what" for anything but the text of a manifest of this format.
Manifest parse_manifest(std::string_view text, const std::string& path);
// The manifest of what several ranks wrote, of the manifests of what each of them did, in which the pieces need not be
// whole tensors. UserError as above; `path` is where the result will be.
Manifest merge_manifests(const std::vector<std::string>& texts, const std::string& path);

}  // namespace tandem::checkpoint
