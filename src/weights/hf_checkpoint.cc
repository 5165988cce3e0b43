// Reads a Hugging Face directory into a WeightStore and writes one from it. The declarations are in store.h.
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <iterator>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "device/thread_pool.h"
#include "tandem/error.h"
#include "weights/bitsandbytes.h"
#include "weights/box_reader.h"
#include "weights/chat_templates.h"
#include "weights/checkpoint_files.h"
#include "weights/export_target.h"
#include "weights/quantise.h"
#include "weights/staging.h"
#include "weights/store.h"
#include "weights/tensor_file.h"
#include "weights/whole_tensors.h"

namespace tandem::weights {
namespace {

using base::Json;

constexpr base::Durable kDurable = base::Durable::kWithDirectory;  // an export is one directory
// These keys record where a file lay on the machine that wrote it, which is useless to a reader and private.
constexpr std::array<const char*, 4> kPlaceKeys = {"_name_or_path", "name_or_path", "tokenizer_file",
                                                   "special_tokens_map_file"};
// transformers requires this note of the program that wrote the file.
const std::map<std::string, std::string> kMetadata = {{"format", "pt"}};

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

// Reads a matrix that is quantised in the file alone: a router of experts.
void load_dequantised(const SliceSource& match, const CheckpointFiles& files, const WeightStore& store) {
  const device::QuantisedPart part =
      device::quantised_part(match.stored, 0, match.slice->shape[0], match.slice->shape[1], /*first_byte=*/0);
  std::vector<std::byte> bytes(static_cast<size_t>(part.end_byte));
  read_stored(files, match.slice->hf_name, part, bytes.data());
  const device::QuantisedBytes codes = device::quantised_bytes(part, bytes.data());
  const at::Tensor weights = at::empty(match.slice->shape, at::kFloat);
  for (int64_t w = 0; w < part.num_weights(); ++w) weights.data_ptr<float>()[w] = device::weight_at(codes, w);
  store.slice(*match.packed, *match.slice).copy_(weights);
}

// Holds the resources of one loading: the threads that convert and quantise, and buffers.
struct Loading {
  explicit Loading(int num_threads) : threads(num_threads) {}
  device::ThreadPool threads;
  Staging staging{threads};
  BoxReader reader;
};

void load_slice(const SliceSource& match, const CheckpointFiles& files, const WeightStore& store, Loading& loading) {
  if (match.stored != device::Quantisation::kNone) {
    if (!match.packed->is_quantised()) return load_dequantised(match, files, store);
    return write_part(store.quantised(match.packed->name), match.slice->row_begin,
                      [&](const device::QuantisedPart& part, std::byte* bytes) {
                        read_stored(files, match.slice->hf_name, part, bytes);
                      });
  }
  const auto& [file, info] = match.source;
  const at::ScalarType dtype = torch_dtype(info->dtype, file->path());
  const Box box = box_of(*match.slice);
  const auto read = [&](const at::Tensor& piece, int64_t first) {
    loading.reader.read(*file, *info, box, first, bytes_of(piece));
  };
  if (!match.packed->is_quantised()) return loading.staging.fill(store.slice(*match.packed, *match.slice), dtype, read);
  quantise_part(store.quantised(match.packed->name), match.slice->row_begin,
                fmt::format("{}: tensor {}", file->path(), quoted_name(match.slice->hf_name)), loading.threads,
                [&](QuantisedWriter& writer) {
                  loading.staging.stream(box.num_elements(), dtype, read,
                                         [&](std::span<const float> weights) { writer.add(weights); });
                });
}

// A shard is the tensors of one output file, in layout order.
using Shard = std::vector<TensorBytes>;

int64_t num_bytes(const std::vector<TensorBytes>& tensors) {
  int64_t bytes = 0;
  for (const TensorBytes& tensor : tensors) bytes += tensor.num_bytes();
  return bytes;
}

std::vector<Shard> split_into_shards(std::vector<TensorBytes> tensors, int64_t max_shard_bytes) {
  std::vector<Shard> shards(1);
  int64_t shard_bytes = 0;
  for (TensorBytes& tensor : tensors) {
    const int64_t bytes = tensor.num_bytes();
    if (!shards.back().empty() && shard_bytes + bytes > max_shard_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shards.back().push_back(std::move(tensor));
    shard_bytes += bytes;
  }
  return shards;
}

void write_weights(const std::string& directory, std::vector<TensorBytes> tensors, int64_t max_shard_bytes) {
  const int64_t total_bytes = num_bytes(tensors), element_bytes = safetensors_dtype_bits(tensors.front().dtype) / 8;
  const std::vector<Shard> shards = split_into_shards(std::move(tensors), max_shard_bytes);
  if (shards.size() == 1) {
    write_safetensors(fmt::format("{}/{}", directory, kSingleFile), shards.front(), kMetadata, kDurable);
    return;
  }
  std::map<std::string, std::string> shard_of;  // by tensor name, as transformers sorts the index
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_safetensors(directory + "/" + name, shards[i], kMetadata, kDurable);
    for (const TensorBytes& tensor : shards[i]) shard_of.emplace(tensor.name, name);
  }
  Json index;
  index["metadata"] = {{"total_parameters", total_bytes / element_bytes}, {"total_size", total_bytes}};
  index["weight_map"] = shard_of;
  base::write_file_durably(fmt::format("{}/{}", directory, kIndexFile), index.dump(2) + "\n", kDurable);
}

// Removes a machine's paths; names of published models stay. Returns true if there was one.
bool erase_places(Json& config) {
  bool erased = false;
  for (const char* key : kPlaceKeys) {
    const auto found = config.find(key);
    if (found == config.end() || !found->is_string() || !found->get_ref<const std::string&>().starts_with('/'))
      continue;
    config.erase(found);
    erased = true;
  }
  return erased;
}

// Returns the files of a model directory that are copied, by their paths in it.
std::vector<std::string> copied_files(const std::string& directory) {
  std::vector<std::string> files;
  for (const std::string_view name : kCopiedFiles) {
    if (base::file_exists(fmt::format("{}/{}", directory, name))) files.emplace_back(name);
  }
  std::ranges::move(additional_templates(directory), std::back_inserter(files));
  return files;
}

// Returns the bytes of a copied file, without the paths in tokenizer_config.json. A file that our strict reader refuses
// is copied as it is: the run worked with it, and a checkpoint must not fail because of it.
std::string copied_file(const std::string& path, std::string_view name) {
  std::string text = base::read_file(path);
  if (name != "tokenizer_config.json") return text;
  try {
    Json config = base::parse_json(text, path);
    return config.is_object() && erase_places(config) ? config.dump(2) + "\n" : text;
  } catch (const UserError&) {
    return text;
  }
}

// Returns the source's config.json with the store's dtype, under the key or keys that it already uses.
std::string rewritten_config(const std::string& source_directory, at::ScalarType dtype) {
  const std::string path = source_directory + "/config.json";
  Json config = base::read_json_file(path);
  TANDEM_USER_CHECK(config.is_object(), path + ": the file must hold one JSON object; take it from its source again");
  const char* name = dtype == at::kFloat ? "float32" : "bfloat16";
  const bool older = config.contains("torch_dtype");
  if (older) config["torch_dtype"] = name;
  if (!older || config.contains("dtype")) config["dtype"] = name;
  erase_places(config);
  return config.dump(2) + "\n";
}

void load_files(const CheckpointFiles& files, WeightStore& store, int num_threads) {
  const std::vector<SliceSource> matches = match_layout(files, store.layout());
  check_twins(files, store.layout());
  if (!store.has_storage()) store.allocate();
  Loading loading(num_threads);
  for (const SliceSource& match : matches) load_slice(match, files, store, loading);
}

// Writes DIR: the files that `write` puts into it, and the source's tokenizer and generation files.
void write_export(const std::string& directory, int64_t weight_bytes, const ExportOptions& options,
                  const std::function<void(const std::string& directory)>& write) {
  const std::string target = base::without_trailing_slashes(directory);
  check_export_target(target, options.overwrite);
  const std::string parent = std::filesystem::absolute(target).parent_path().string();
  base::make_directories(parent);
  base::check_writable_directory(parent, weight_bytes);

  base::DurableDirectory output(target, options.overwrite);
  write(output.path());
  for (const std::string& name : copied_files(options.source_directory)) {
    const std::string copy = fmt::format("{}/{}", output.path(), name);
    base::make_directories(std::filesystem::path(copy).parent_path().string());
    base::write_file_durably(copy, copied_file(fmt::format("{}/{}", options.source_directory, name), name), kDurable);
  }
  output.commit();
}

}  // namespace

void load_hf_checkpoint(const std::string& directory, WeightStore& store, int num_threads) {
  load_files(CheckpointFiles(directory), store, num_threads);
}

void load_adapter(const std::string& directory, WeightStore& store) {
  load_files(CheckpointFiles(directory, kAdapterFile), store, /*num_threads=*/1);
}

void export_hf_checkpoint(const std::string& directory, const WeightStore& store, const ExportOptions& options,
                          device::Communicator& replica) {
  TANDEM_CHECK(options.max_shard_bytes > 0, "max_shard_bytes");
  TANDEM_CHECK(store.has_storage(), "an export before the weights have storage");
  with_whole_tensors(store, replica, [&](std::vector<TensorBytes> tensors) {
    const std::string config = rewritten_config(options.source_directory, store.dtype());
    write_export(directory, num_bytes(tensors), options, [&](const std::string& output) {
      write_weights(output, std::move(tensors), options.max_shard_bytes);
      base::write_file_durably(output + "/config.json", config, kDurable);
    });
  });
}

void export_hf_checkpoint(const std::string& directory, const WeightStore& store, const ExportOptions& options) {
  export_hf_checkpoint(directory, store, options, *device::solo_communicator());
}

void export_adapter(const std::string& directory, const WeightStore& store, const std::string& config,
                    const ExportOptions& options) {
  TANDEM_CHECK(store.has_storage(), "an export before the weights have storage");
  write_export(directory, store.bytes(), options, [&](const std::string& output) {
    Shard tensors;
    for (const PackedTensor& packed : store.layout().tensors) {
      for (const Slice& slice : packed.slices) {
        tensors.push_back(tensor_bytes(slice.hf_name, store.slice(packed, slice)));
        if (!slice.twin.empty()) tensors.push_back(tensor_bytes(slice.twin, store.slice(packed, slice)));
      }
    }
    write_safetensors(fmt::format("{}/{}", output, kAdapterWeights), std::move(tensors), kMetadata, kDurable);
    base::write_file_durably(fmt::format("{}/{}", output, kAdapterConfig), config, kDurable);
  });
}

int64_t copied_bytes(const std::string& source_directory) {
  int64_t bytes = base::ReadableFile(source_directory + "/config.json").size();
  for (const std::string& name : copied_files(source_directory)) {
    bytes += base::ReadableFile(fmt::format("{}/{}", source_directory, name)).size();
  }
  return bytes;
}

}  // namespace tandem::weights
