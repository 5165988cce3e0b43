// Hugging Face directories that are read and written: they have the same bytes and the same files, and none is
// half-written.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "base/json.h"
#include "model/config.h"
#include "model/registry.h"
#include "tandem/error.h"
#include "tests/base/thrown.h"
#include "tests/golden/golden.h"
#include "tests/model/families.h"
#include "tests/model/small_models.h"
#include "tests/pretend_device/pretend_device.h"
#include "tests/weights/file_bytes.h"
#include "tests/weights/small_layout.h"
#include "tests/weights/starting_states.h"
#include "tests/weights/tensor_files.h"
#include "weights/checkpoint_files.h"
#include "weights/store.h"

namespace tandem::weights {
namespace {

namespace fs = std::filesystem;
using base::Json;

std::string tied_path() { return golden::directory() + "/models/qwen3-tied"; }
std::string sharded_path() { return golden::directory() + "/models/qwen3-untied-sharded"; }

std::vector<std::string> golden_models() {
  std::vector<std::string> directories;
  for (const std::string& model : model::kGoldenModels) directories.push_back(golden::directory() + "/models/" + model);
  return directories;
}

at::ScalarType dtype_of(const model::ModelConfig& config) {
  return config.dtype == model::Dtype::kFloat32 ? at::kFloat : at::kBFloat16;
}

// Loads a checkpoint into a store of its own dtype, or another.
WeightStore load(const std::string& directory, std::optional<at::ScalarType> dtype = std::nullopt) {
  const model::ModelConfig config = model::read_model_config(directory);
  WeightStore store(model::build_layout(config), dtype.value_or(dtype_of(config)));
  load_hf_checkpoint(directory, store);
  return store;
}

// Returns every tensor of a directory's files, by HF name, read without store or layout.
std::map<std::string, at::Tensor> hf_tensors(const std::string& directory) {
  std::map<std::string, at::Tensor> tensors;
  const CheckpointFiles files(directory);
  for (const auto& [name, location] : files.tensors()) tensors.emplace(name, read_tensor(*location.file, name));
  return tensors;
}

std::set<std::string> names_in(const std::string& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.insert(entry.path().filename());
  return names;
}

void expect_same_tensors(const std::string& a, const std::string& b) {
  const auto left = hf_tensors(a), right = hf_tensors(b);
  ASSERT_EQ(left.size(), right.size());
  for (const auto& [name, tensor] : left) {
    ASSERT_TRUE(right.contains(name)) << name;
    EXPECT_EQ(tensor.scalar_type(), right.at(name).scalar_type()) << name;
    EXPECT_TRUE(at::equal(tensor, right.at(name))) << name;
  }
}

TEST(LoadHfCheckpoint, EverySliceHoldsItsTensor) {
  for (const std::string& directory : golden_models()) {
    const WeightStore store = load(directory);
    const auto tensors = hf_tensors(directory);
    for (const PackedTensor& packed : store.layout().tensors) {
      for (const Slice& slice : packed.slices) {
        EXPECT_TRUE(at::equal(store.slice(packed, slice), tensors.at(slice.hf_name))) << slice.hf_name;
      }
    }
  }
}

TEST(LoadHfCheckpoint, ConvertsBetweenDtypesWithOneRounding) {
  const WeightStore narrow = load(tied_path(), at::kBFloat16);  // float32 on disk
  const WeightStore exact = load(tied_path());
  const WeightStore wide = load(sharded_path(), at::kFloat);  // bfloat16 on disk
  const WeightStore stored = load(sharded_path());
  for (const PackedTensor& packed : exact.layout().tensors) {
    EXPECT_TRUE(at::equal(narrow.tensor(packed.name), exact.tensor(packed.name).to(at::kBFloat16))) << packed.name;
  }
  for (const PackedTensor& packed : stored.layout().tensors) {
    EXPECT_TRUE(at::equal(wide.tensor(packed.name), stored.tensor(packed.name).to(at::kFloat))) << packed.name;
  }
}

// The tensors are larger than one staging buffer, and no multiple of it; they are float16 on disk.
TEST(LoadHfCheckpoint, ConvertsTensorsLargerThanItsBuffer) {
  const TemporaryDirectory directory;
  const at::Tensor half = at::arange(1500 * 1501, at::kFloat).sin().view({1500, 1501}).to(at::kHalf);
  write_tensors(directory / "model.safetensors", {{"w", half}});
  Layout layout;
  layout.tensors.push_back({.name = "w", .shape = {1500, 1501}, .slices = {{.hf_name = "w", .shape = {1500, 1501}}}});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    WeightStore store(layout, dtype);
    load_hf_checkpoint(directory.path(), store);
    EXPECT_TRUE(at::equal(store.tensor("w"), half.to(at::kFloat).to(dtype)));
  }
}

TEST(LoadHfCheckpoint, DamageIsAUserErrorThatNamesTheFile) {
  const TemporaryDirectory copy;
  fs::copy(tied_path(), copy.path(), fs::copy_options::recursive);
  WeightStore store = load(tied_path());
  fs::resize_file(copy / "model.safetensors", fs::file_size(copy / "model.safetensors") - 1);
  const std::string message = base::refusal_of([&] { load_hf_checkpoint(copy.path(), store); });
  EXPECT_TRUE(message.starts_with(copy / "model.safetensors: the file is cut off")) << message;
}

// The 18,867 tensors of Qwen3-30B-A3B, made small. No step may look through all of them for each of them.
TEST(LoadHfCheckpoint, ThousandsOfExpertsGoThereAndBack) {
  const TemporaryDirectory directory;
  model::ModelConfig config = model::qwen3_30b_a3b();
  config.hidden = config.vocab = 8;
  config.num_heads = config.num_kv_heads = config.head_dim = 2;
  config.experts->width = 1;
  WeightStore store(model::build_layout(config), at::kBFloat16);
  initialize_random(store, 0.2, 3);
  const auto begin = std::chrono::steady_clock::now();
  export_hf_checkpoint(directory / "model", store, {.source_directory = sharded_path()});
  WeightStore again(store.layout(), at::kBFloat16);
  load_hf_checkpoint(directory / "model", again);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  for (const PackedTensor& packed : store.layout().tensors)
    ASSERT_TRUE(at::equal(store.tensor(packed.name), again.tensor(packed.name))) << packed.name;
  EXPECT_LT(seconds.count(), 20.0);
}

constexpr std::array<at::ScalarType, 2> kStoreDtypes = {at::kFloat, at::kBFloat16};
constexpr std::array<at::ScalarType, 3> kFileDtypes = {at::kFloat, at::kBFloat16, at::kHalf};

// This is the written-out definition: each slice is its tensor, rounded once.
void expect_converted(const WeightStore& store, const HfTensors& tensors) {
  for (const PackedTensor& packed : store.layout().tensors) {
    for (const Slice& slice : packed.slices) {
      const at::Tensor expected = tensors.at(slice.hf_name).to(at::kFloat).to(store.dtype());
      const at::Tensor actual = store.slice(packed, slice).cpu();
      EXPECT_EQ(std::memcmp(actual.data_ptr(), expected.data_ptr(), expected.nbytes()), 0) << slice.hf_name;
    }
  }
}

TEST(LoadHfCheckpoint, GivesTheSameBitsWithAndWithoutStorage) {
  for (const Layout& layout : {small_layout(), large_layout()}) {
    for (const at::ScalarType from : kFileDtypes) {
      const HfTensors tensors = some_tensors(layout, from);
      const TemporaryDirectory directory;
      write_directory(directory.path(), tensors);
      for (const at::ScalarType to : kStoreDtypes) {
        SCOPED_TRACE(std::string(c10::toString(from)) + " to " + c10::toString(to));
        WeightStore store(layout, to), later = WeightStore::without_storage(layout, to);
        load_hf_checkpoint(directory.path(), store);
        expect_converted(store, tensors);
        load_hf_checkpoint(directory.path(), later);
        expect_same_bits(later, store);
      }
    }
  }
}

TEST(LoadHfCheckpoint, IgnoresWhatTheLayoutIgnores) {
  WeightStore store(small_layout(/*tied=*/true), at::kFloat);
  ASSERT_EQ(store.layout().ignored, std::vector<std::string>{"lm_head.weight"});
  HfTensors tensors = some_tensors(store.layout(), at::kFloat);
  tensors.emplace("lm_head.weight", tensors.at("model.embed_tokens.weight").clone());
  const TemporaryDirectory directory;
  write_directory(directory.path(), tensors);
  load_hf_checkpoint(directory.path(), store);
  expect_converted(store, tensors);
  tensors.at("lm_head.weight") = at::zeros({1}, at::kInt);
  const TemporaryDirectory other;
  write_directory(other.path(), tensors);
  const std::string message = base::refusal_of([&] { load_hf_checkpoint(other.path(), store); });
  EXPECT_NE(message.find("\"lm_head.weight\" has another dtype than \"model.embed_tokens.weight\""), std::string::npos)
      << message;
}

// The embedding has a little more than 4 MiB, of which one is compared at a time.
TEST(LoadHfCheckpoint, ATiedHeadIsComparedWholeBeforeAnythingChanges) {
  constexpr int64_t kRows = 1500, kColumns = 701;
  const std::string embedding = "model.embed_tokens.weight", head = "lm_head.weight";
  Layout layout;
  layout.tensors.push_back({.name = "embed",
                            .shape = {kRows, kColumns},
                            .slices = {{.hf_name = embedding, .shape = {kRows, kColumns}, .twin = head}}});
  layout.ignored.push_back(head);
  HfTensors tensors = some_tensors(layout, at::kFloat);
  WeightStore store = WeightStore::without_storage(layout, at::kBFloat16);
  for (const int64_t changed : {int64_t{3}, int64_t{1} << 18, kRows * kColumns - 2}) {
    const at::Tensor other = tensors.at(embedding).clone();
    other.view(-1)[changed].add_(1);
    tensors.insert_or_assign(head, other);
    const TemporaryDirectory directory;
    write_directory(directory.path(), tensors);
    const std::string message = base::refusal_of([&] { load_hf_checkpoint(directory.path(), store); });
    EXPECT_TRUE(message.starts_with(directory / "model.safetensors: tensor \"lm_head.weight\" has other values than "))
        << message;
    EXPECT_FALSE(store.has_storage());
  }
  tensors.insert_or_assign(head, tensors.at(embedding).clone());
  const TemporaryDirectory directory;
  write_directory(directory.path(), tensors);
  load_hf_checkpoint(directory.path(), store);
  expect_converted(store, tensors);
}

TEST(LoadAdapter, ATiedHeadMustBeACopyToo) {
  const std::string embedding = "base_model.model.model.embed_tokens.weight", head = "base_model.model.lm_head.weight";
  Layout layout;
  layout.tensors.push_back(
      {.name = "embed", .shape = {9, 4}, .slices = {{.hf_name = embedding, .shape = {9, 4}, .twin = head}}});
  layout.ignored.push_back(head);
  HfTensors tensors = some_tensors(layout, at::kFloat);
  tensors.emplace(head, tensors.at(embedding).clone());
  const TemporaryDirectory directory;
  write_tensors(directory / "adapter_model.safetensors", tensors);
  WeightStore store(layout, at::kFloat);
  load_adapter(directory.path(), store);
  expect_converted(store, tensors);
  tensors.at(head)[4].add_(1);
  write_tensors(directory / "adapter_model.safetensors", tensors);
  const std::string message = base::refusal_of([&] { load_adapter(directory.path(), store); });
  EXPECT_NE(message.find("adapter_model.safetensors: tensor \"" + head + "\" has other values"), std::string::npos)
      << message;
  EXPECT_NE(message.find("ensure_weight_tying"), std::string::npos) << message;
}

TEST(LoadHfCheckpoint, RefusesBeforeAnythingChanges) {
  const std::string name = "model.layers.1.self_attn.k_proj.weight";
  const HfTensors good = some_tensors(small_layout(), at::kFloat);
  HfTensors missing = good, shaped = good, wide = good;
  missing.erase(name);
  shaped.at(name) = shaped.at(name).t().contiguous();
  wide.at(name) = wide.at(name).to(at::kDouble);
  WeightStore empty = WeightStore::without_storage(small_layout(), at::kFloat);
  WeightStore filled(small_layout(), at::kFloat), same(small_layout(), at::kFloat);
  initialize_random(filled, 0.02, 1);
  initialize_random(same, 0.02, 1);
  for (const HfTensors* bad : {&missing, &shaped, &wide}) {
    const TemporaryDirectory directory;
    write_directory(directory.path(), *bad);
    const std::string message = base::refusal_of([&] { load_hf_checkpoint(directory.path(), empty); });
    EXPECT_NE(message.find(name), std::string::npos) << message;
    EXPECT_FALSE(empty.has_storage());
    base::refusal_of([&] { load_hf_checkpoint(directory.path(), filled); });
    expect_same_bits(filled, same);
  }
  const TemporaryDirectory directory;
  write_directory(directory.path(), good);
  load_hf_checkpoint(directory.path(), empty);  // the store can still be filled
  expect_converted(empty, good);
}

// The device has room for the store and for nothing else.
TEST(LoadHfCheckpointOnDevice, NeedsRoomForTheStoreAlone) {
  for (const at::ScalarType from : kFileDtypes) {
    const HfTensors tensors = some_tensors(large_layout(), from);
    const TemporaryDirectory directory;
    write_directory(directory.path(), tensors);
    for (const at::ScalarType to : kStoreDtypes) {
      SCOPED_TRACE(std::string(c10::toString(from)) + " to " + c10::toString(to));
      WeightStore store = WeightStore::without_storage(large_layout(), to, pretend_device::device());
      pretend_device::reset(store.bytes());
      load_hf_checkpoint(directory.path(), store);
      EXPECT_EQ(pretend_device::live_bytes(), store.bytes());
      EXPECT_EQ(pretend_device::num_conversions(), 0);  // LibTorch would take a buffer for each
      expect_converted(store, tensors);
    }
  }
}

TEST(LoadHfCheckpointOnDevice, ADeviceWithoutRoomIsTheMachinesError) {
  WeightStore store = WeightStore::without_storage(small_layout(), at::kFloat, pretend_device::device());
  pretend_device::reset(store.bytes() - 1);
  const TemporaryDirectory directory;
  write_directory(directory.path(), some_tensors(small_layout(), at::kBFloat16));
  EXPECT_THROW(load_hf_checkpoint(directory.path(), store), EnvironmentError);
  EXPECT_FALSE(store.has_storage());
  EXPECT_EQ(pretend_device::live_bytes(), 0);
}

TEST(ExportHfCheckpoint, OfNothingIsABug) {
  const TemporaryDirectory directory;
  const WeightStore store = WeightStore::without_storage(small_layout(), at::kFloat);
  EXPECT_THROW(export_hf_checkpoint(directory / "out", store, {.source_directory = directory.path()}), BugError);
}

TEST(ExportHfCheckpoint, LoadsBackBitForBit) {
  for (const std::string& source : golden_models()) {
    const TemporaryDirectory directory;
    const std::string target = directory / "out";
    export_hf_checkpoint(target, load(source), {.source_directory = source});
    expect_same_tensors(source, target);
    const WeightStore first = load(source), second = load(target);
    for (const PackedTensor& packed : first.layout().tensors) {
      EXPECT_TRUE(at::equal(first.tensor(packed.name), second.tensor(packed.name))) << packed.name;
    }
    EXPECT_EQ(names_in(directory.path()), std::set<std::string>{"out"});  // no temporary is left
  }
}

TEST(ExportHfCheckpoint, CopiesTokenizerAndGenerationFilesAndKeepsTheConfig) {
  for (const std::string& source : golden_models()) {
    const TemporaryDirectory directory;
    const std::string target = directory / "parent/out/";
    export_hf_checkpoint(target, load(source), {.source_directory = source});
    EXPECT_EQ(names_in(target),
              (std::set<std::string>{"config.json", "generation_config.json", "merges.txt", "model.safetensors",
                                     "tokenizer.json", "tokenizer_config.json", "vocab.json"}));
    for (const std::string name :
         {"generation_config.json", "merges.txt", "tokenizer.json", "tokenizer_config.json", "vocab.json"}) {
      EXPECT_EQ(read_bytes(target + name), read_bytes(source + "/" + name)) << name;
    }
    EXPECT_EQ(base::read_json_file(target + "config.json"), base::read_json_file(source + "/config.json"));
    EXPECT_EQ(SafetensorsFile(target + "model.safetensors").metadata(),
              (std::map<std::string, std::string>{{"format", "pt"}}));
  }
}

TEST(ExportHfCheckpoint, CopiesFilesOfOtherTokenizersAndFurtherTemplates) {
  const TemporaryDirectory directory;
  const std::string source = directory / "source", target = directory / "out", templates = "/additional_chat_templates";
  fs::copy(tied_path(), source, fs::copy_options::recursive);
  fs::create_directory(source + templates);
  const std::map<std::string, std::string> files = {{"/tokenizer.model", std::string("\x0a\x00\xff", 3)},
                                                    {"/added_tokens.json", "{}"},
                                                    {"/special_tokens_map.json", "{ }"},
                                                    {"/chat_template.json", "{\"chat_template\": \"old\"}"},
                                                    {"/chat_template.jinja", "first"},
                                                    {templates + "/rag.jinja", "with documents"},
                                                    {templates + "/tool_use.jinja", "with tools"}};
  int64_t num_bytes = copied_bytes(source);
  for (const auto& [name, bytes] : files) {
    write_bytes(source + name, bytes);
    num_bytes += std::ssize(bytes);
  }
  // A cache of the hub keeps each file as a link.
  fs::rename(source + templates + "/rag.jinja", directory / "blob");
  fs::create_symlink("../../blob", source + templates + "/rag.jinja");
  // These are no templates, and no tokenizer's.
  write_bytes(source + templates + "/notes.txt", "private");
  fs::create_directory(source + templates + "/folder.jinja");
  write_bytes(source + "/modeling.py", "import os");
  EXPECT_EQ(copied_bytes(source), num_bytes);

  const WeightStore store = load(source);
  const auto expect_copied = [&] {
    for (const auto& [name, bytes] : files) {
      EXPECT_EQ(read_bytes(target + name), bytes) << name;
      EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(target + name))) << name;
    }
    EXPECT_EQ(names_in(target + templates), (std::set<std::string>{"rag.jinja", "tool_use.jinja"}));
    EXPECT_FALSE(fs::exists(target + "/modeling.py"));
  };
  export_hf_checkpoint(target, store, {.source_directory = source});
  expect_copied();
  export_hf_checkpoint(target, store, {.source_directory = target, .overwrite = true});
  expect_copied();
  EXPECT_EQ(names_in(directory.path()), (std::set<std::string>{"blob", "out", "source"}));
}

TEST(ExportHfCheckpoint, ConfigSaysTheStoresDtypeInItsOwnSpelling) {
  const TemporaryDirectory directory;
  export_hf_checkpoint(directory / "tied", load(tied_path(), at::kBFloat16), {.source_directory = tied_path()});
  const Json older = base::read_json_file(directory / "tied/config.json");
  EXPECT_EQ(older.at("torch_dtype"), "bfloat16");
  EXPECT_FALSE(older.contains("dtype"));
  export_hf_checkpoint(directory / "untied", load(sharded_path(), at::kFloat), {.source_directory = sharded_path()});
  const Json newer = base::read_json_file(directory / "untied/config.json");
  EXPECT_EQ(newer.at("dtype"), "float32");
  EXPECT_FALSE(newer.contains("torch_dtype"));
  EXPECT_EQ(load(directory / "untied").dtype(), at::kFloat);
}

TEST(ExportHfCheckpoint, ShardsKeepToTheirLimit) {
  constexpr int64_t kMaxShardBytes = 100'000;
  const TemporaryDirectory directory;
  const std::string target = directory / "out";
  export_hf_checkpoint(target, load(sharded_path()),
                       {.source_directory = sharded_path(), .max_shard_bytes = kMaxShardBytes});
  expect_same_tensors(sharded_path(), target);
  const Json index = base::read_json_file(target + "/model.safetensors.index.json");
  EXPECT_EQ(index.at("metadata"),
            base::read_json_file(sharded_path() + "/model.safetensors.index.json").at("metadata"));
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : index.at("weight_map").items()) shards.insert(shard.get<std::string>());
  EXPECT_GT(shards.size(), 5U);
  for (const std::string& shard : shards) {
    const SafetensorsFile file(target + "/" + shard);
    int64_t bytes = 0;
    for (const auto& [name, info] : file.tensors()) bytes += info.num_bytes();
    EXPECT_TRUE(bytes <= kMaxShardBytes || file.tensors().size() == 1) << shard << " " << bytes;
  }
  EXPECT_TRUE(shards.contains(fmt::format("model-00001-of-{:05}.safetensors", shards.size())));
}

TEST(ExportHfCheckpoint, NeverReplacesUnasked) {
  const TemporaryDirectory directory;
  const std::string target = directory / "out";
  const WeightStore store = load(tied_path());
  export_hf_checkpoint(target, store, {.source_directory = tied_path()});
  const std::string before = read_bytes(target + "/model.safetensors");
  EXPECT_NE(base::refusal_of([&] {
              export_hf_checkpoint(target, load(tied_path()), {.source_directory = tied_path()});
            }).find(target),
            std::string::npos);
  EXPECT_EQ(read_bytes(target + "/model.safetensors"), before);
}

TEST(ExportHfCheckpoint, OverwritesAnEarlierExportWhole) {
  const TemporaryDirectory directory;
  const std::string target = directory / "out";
  export_hf_checkpoint(target, load(sharded_path()), {.source_directory = sharded_path(), .max_shard_bytes = 100'000});
  // The source may also be the target: the old files are removed only when the new ones are complete.
  const WeightStore store = load(target);
  export_hf_checkpoint(target, store, {.source_directory = target, .overwrite = true});
  expect_same_tensors(sharded_path(), target);
  EXPECT_TRUE(fs::exists(target + "/model.safetensors"));
  EXPECT_FALSE(fs::exists(target + "/model.safetensors.index.json"));
  EXPECT_TRUE(fs::exists(target + "/tokenizer.json"));
}

TEST(ExportHfCheckpoint, NeverRemovesWhatItDidNotWrite) {
  const TemporaryDirectory directory;
  const std::string target = directory / "out";
  const WeightStore store = load(tied_path());
  const ExportOptions options = {.source_directory = tied_path(), .overwrite = true};
  export_hf_checkpoint(target, store, options);
  write_bytes(target + "/thesis.tex", "three years");
  const std::string message = base::refusal_of([&] { export_hf_checkpoint(target, store, options); });
  EXPECT_NE(message.find("thesis.tex"), std::string::npos) << message;
  EXPECT_EQ(read_bytes(target + "/thesis.tex"), "three years");
  fs::remove(target + "/thesis.tex");
  for (const std::string folder : {"drafts", "tokenizer.json.d", "additional_chat_templates"}) {
    fs::create_directories(target + "/" + folder + "/thesis.jinja");  // a folder is no template
    const std::string of_folder = base::refusal_of([&] { export_hf_checkpoint(target, store, options); });
    EXPECT_NE(of_folder.find("holds \"" + folder + "\""), std::string::npos) << of_folder;
    fs::remove_all(target + "/" + folder);
    fs::create_directory(target + "/" + folder);
    write_bytes(target + "/" + folder + "/thesis.tex", "three years");
    const std::string of_file = base::refusal_of([&] { export_hf_checkpoint(target, store, options); });
    EXPECT_NE(of_file.find("holds \"" + folder + "\""), std::string::npos) << of_file;
    EXPECT_EQ(read_bytes(target + "/" + folder + "/thesis.tex"), "three years");
    fs::remove_all(target + "/" + folder);
  }
  write_bytes(directory / "file", "");
  EXPECT_NE(base::refusal_of([&] { export_hf_checkpoint(directory / "file", store, options); }).find("in the way"),
            std::string::npos);
}

TEST(ExportHfCheckpoint, AFailedExportLeavesNothing) {
  const TemporaryDirectory directory;
  const WeightStore store = load(tied_path());
  EXPECT_THROW(export_hf_checkpoint(directory / "out", store, {.source_directory = directory / "absent"}), UserError);
  EXPECT_TRUE(names_in(directory.path()).empty());
  // The source fails after the weights are written: a read of its tokenizer.json is an input/output error.
  fs::create_directory(directory / "source");
  fs::copy_file(tied_path() + "/config.json", directory / "source/config.json");
  fs::create_symlink("/proc/self/mem", directory / "source/tokenizer.json");
  EXPECT_THROW(export_hf_checkpoint(directory / "out", store, {.source_directory = directory / "source"}),
               EnvironmentError);
  EXPECT_EQ(names_in(directory.path()), std::set<std::string>{"source"});
  // A chat template that is no regular file stops it at the same place.
  fs::remove(directory / "source/tokenizer.json");
  fs::create_directory(directory / "source/additional_chat_templates");
  fs::create_symlink("/dev/null", directory / "source/additional_chat_templates/x.jinja");
  const std::string message = base::refusal_of(
      [&] { export_hf_checkpoint(directory / "out", store, {.source_directory = directory / "source"}); });
  EXPECT_NE(message.find("additional_chat_templates/x.jinja: is no regular file"), std::string::npos) << message;
  EXPECT_EQ(names_in(directory.path()), std::set<std::string>{"source"});
}

// A limit on file sizes makes a full disk: the weights (about 800 kB) do not fit, the small files do.
TEST(ExportHfCheckpoint, AFullDiskLeavesTheOldCheckpoint) {
  const TemporaryDirectory directory;
  const std::string target = directory / "out";
  const WeightStore store = load(tied_path());
  const ExportOptions options = {.source_directory = tied_path(), .overwrite = true};
  export_hf_checkpoint(target, store, options);
  const std::string before = read_bytes(target + "/model.safetensors");

  rlimit old_limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const rlimit limit = {.rlim_cur = 300'000, .rlim_max = old_limit.rlim_max};
  const auto old_handler = signal(SIGXFSZ, SIG_IGN);  // the write then fails with EFBIG
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_THROW(export_hf_checkpoint(target, store, options), EnvironmentError);
  EXPECT_THROW(export_hf_checkpoint(directory / "new", store, options), EnvironmentError);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  signal(SIGXFSZ, old_handler);

  EXPECT_EQ(names_in(directory.path()), std::set<std::string>{"out"});
  EXPECT_EQ(read_bytes(target + "/model.safetensors"), before);
}

TEST(ExportHfCheckpoint, ADirectoryThatCannotBeMadeIsTheMachinesError) {
  const WeightStore store = load(tied_path());
  EXPECT_THROW(export_hf_checkpoint("/proc/tandem/out", store, {.source_directory = tied_path()}), EnvironmentError);
}

TEST(TensorFile, KeepsDtypesShapesAndBits) {
  const TemporaryDirectory directory;
  std::map<std::string, at::Tensor> tensors;
  for (const at::ScalarType dtype :
       {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt, at::kByte}) {
    tensors.emplace(c10::toString(dtype), at::arange(15, at::kFloat).mul(7.3).view({3, 5}).to(dtype));
  }
  tensors.emplace("scalar", at::empty({}, at::kFloat).fill_(2.5));
  tensors.emplace("empty", at::empty({0, 4}, at::kDouble));
  write_tensors(directory / "t.safetensors", tensors, {{"step", "3"}});
  const auto read = read_tensors(directory / "t.safetensors");
  ASSERT_EQ(read.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(read.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(read.at(name), tensor)) << name;
  }
  EXPECT_THROW(write_tensors(directory / "u.safetensors", {{"t", tensors.at("Float").t()}}), BugError);
  EXPECT_NE(base::refusal_of([&] {
              read_tensors(golden::directory() + "/safetensors_good/sub_byte_dtypes.safetensors");
            }).find("F4"),
            std::string::npos);
}

}  // namespace
}  // namespace tandem::weights
