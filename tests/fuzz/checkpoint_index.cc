// weights/checkpoint_files: an index is accepted only if it names exactly the tensors of shards that lie beside it;
// nothing outside the directory is ever opened, though a good shard waits there.
#include <array>
#include <filesystem>

#include "base/log.h"
#include "tests/base/temporary_directory.h"
#include "tests/fuzz/json_mutator.h"
#include "weights/checkpoint_files.h"

using namespace tandem::fuzz;
using tandem::weights::CheckpointFiles;

namespace {

// Writes DIR/checkpoint, with two shards and the index to fuzz, and DIR/outside.safetensors.
class Checkpoint {
 public:
  Checkpoint() {
    std::filesystem::create_directory(directory());
    write_shard("checkpoint/a.safetensors", {"x", "y"});
    write_shard("checkpoint/b.safetensors", {"z"});
    write_shard("outside.safetensors", {"w"});
    std::filesystem::create_symlink(index_.path(), index_path());
  }

  std::string directory() const { return root_ / "checkpoint"; }
  std::string index_path() const { return directory() + "/model.safetensors.index.json"; }
  void write_index(std::string_view text) const { index_.write(text); }

 private:
  void write_shard(const std::string& name, const std::vector<std::string>& tensors) const {
    static constexpr std::array<std::byte, 4> kZeros{};
    std::vector<tandem::weights::TensorBytes> entries;
    for (const std::string& tensor : tensors) {
      entries.push_back({.name = tensor, .dtype = "F32", .shape = {1}, .bytes = kZeros});
    }
    tandem::weights::write_safetensors(root_ / name, entries, {});
  }

  tandem::base::TemporaryDirectory root_;
  MemoryFile index_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Checkpoint checkpoint;
  checkpoint.write_index(text_of(data, size));
  accepts(
      [] {
        const CheckpointFiles files(checkpoint.directory());
        for (const auto& [name, location] : files.tensors()) {
          const std::string wanted = checkpoint.directory() + (name == "z" ? "/b.safetensors" : "/a.safetensors");
          require(location.file->path() == wanted, "a tensor comes from the shard that holds it", name);
        }
        require(!files.tensors().empty(), "an accepted index names tensors");
      },
      [](std::string_view message) { require_message(message, checkpoint.directory()); });
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return mutate_json(data, size, max_size, seed);
}
