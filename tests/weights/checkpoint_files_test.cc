// Every defect of a Hugging Face directory is reported before any weight is read, with file, tensor and remedy.
#include "weights/checkpoint_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <utility>

#include "base/json.h"
#include "model/config.h"
#include "model/registry.h"
#include "model/reward_model.h"
#include "tandem/error.h"
#include "tests/base/thrown.h"
#include "tests/golden/golden.h"
#include "tests/weights/file_bytes.h"

namespace tandem::weights {
namespace {

using base::Json;

std::string tied_path() { return golden::directory() + "/models/qwen3-tied"; }
std::string sharded_path() { return golden::directory() + "/models/qwen3-untied-sharded"; }
const std::string kIndex = "model.safetensors.index.json";
const std::string kSecondShard = "model-00002-of-00003.safetensors";

Layout layout_of(const std::string& directory) { return model::build_layout(model::read_model_config(directory)); }

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A copy of a golden checkpoint that a test may damage.
class Checkpoint : public TemporaryDirectory {
 public:
  explicit Checkpoint(const std::string& source) {
    std::filesystem::copy(source, path(), std::filesystem::copy_options::recursive);
  }

  std::string refusal() const {
    const Layout layout = layout_of(path());
    return base::refusal_of([&] { check_hf_checkpoint(path(), layout); });
  }

  Json index() const { return base::read_json_file(*this / kIndex); }
  void write_index(const Json& index) const { replace(kIndex, index.dump()); }
  void set_shard_of(const std::string& tensor, const Json& shard) const {
    Json json = index();
    json["weight_map"][tensor] = shard;
    write_index(json);
  }
  void replace(const std::string& name, const std::string& bytes) const { write_bytes(*this / name, bytes); }

  // Writes a safetensors file again with its tensors changed by `change`.
  template <typename Change>
  void rewrite(const std::string& name, Change change) const {
    std::vector<TensorBytes> tensors;
    const std::string path = *this / name;
    const std::string bytes = read_bytes(path);
    {
      const SafetensorsFile file(path);
      const int64_t data = static_cast<int64_t>(bytes.size()) - data_bytes(file);
      for (const auto& [tensor, info] : file.tensors()) {
        tensors.push_back({.name = tensor,
                           .dtype = info.dtype,
                           .shape = info.shape,
                           .bytes = std::as_bytes(std::span(bytes)).subspan(data + info.begin_byte, info.num_bytes())});
      }
    }
    change(tensors);
    write_safetensors(path, tensors);
  }

 private:
  static int64_t data_bytes(const SafetensorsFile& file) {
    int64_t bytes = 0;
    for (const auto& [name, info] : file.tensors()) bytes += info.num_bytes();
    return bytes;
  }
};

TensorBytes& find(std::vector<TensorBytes>& tensors, const std::string& name) {
  return *std::find_if(tensors.begin(), tensors.end(), [&](const TensorBytes& t) { return t.name == name; });
}

// Hosts are compared by it, so it must not depend on where the files lie.
TEST(CheckpointFiles, HaveAFingerprintThatOtherWeightsDoNotHave) {
  const Checkpoint checkpoint(sharded_path());
  const std::string before = weights_fingerprint(sharded_path());
  EXPECT_EQ(weights_fingerprint(checkpoint.path()), before);
  const std::string shard = checkpoint.path() + "/" + kSecondShard, bytes = read_bytes(shard);
  for (const size_t at : {bytes.size() / 2, bytes.size() - 1}) {
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    write_bytes(shard, changed);
    EXPECT_NE(weights_fingerprint(checkpoint.path()), before) << "byte " << at;
  }
  write_bytes(shard, bytes);
  EXPECT_EQ(weights_fingerprint(checkpoint.path()), before);
}

TEST(CheckpointFiles, GoldenCheckpointsAreComplete) {
  for (const std::string& directory : {tied_path(), sharded_path()}) {
    const CheckpointFiles files(directory);
    const Layout layout = layout_of(directory);
    const std::vector<SliceSource> matches = match_layout(files, layout);
    EXPECT_EQ(matches.size(), files.tensors().size());
    for (size_t i = 1; i < matches.size(); ++i) {
      const auto &before = matches[i - 1].source, &after = matches[i].source;
      EXPECT_TRUE(before.file->path() < after.file->path() ||
                  (before.file == after.file && before.tensor->end_byte <= after.tensor->begin_byte));
    }
  }
}

TEST(CheckpointFiles, MissingShardIsNamed) {
  const Checkpoint checkpoint(sharded_path());
  std::filesystem::remove(checkpoint / kSecondShard);
  const std::string message = checkpoint.refusal();
  EXPECT_TRUE(contains(message, checkpoint / kSecondShard)) << message;
  EXPECT_TRUE(contains(message, "missing")) << message;
}

TEST(CheckpointFiles, TruncatedShardIsNamed) {
  const Checkpoint checkpoint(sharded_path());
  for (const uintmax_t size : {uintmax_t{0}, uintmax_t{5}, uintmax_t{100}, uintmax_t{400000}}) {
    std::filesystem::resize_file(checkpoint / kSecondShard, size);
    const std::string message = checkpoint.refusal();
    EXPECT_TRUE(message.starts_with(checkpoint / kSecondShard)) << message;
  }
}

TEST(CheckpointFiles, ShardNamesThatLeaveTheDirectoryAreRefused) {
  const Checkpoint checkpoint(sharded_path());
  for (const std::string name :
       {"../model-00001-of-00003.safetensors", "/etc/passwd", "/tmp/x.safetensors", "sub/x.safetensors",
        "..\\x.safetensors", "..", ".", "", "..safetensors", ".hidden.safetensors", "pytorch_model.bin"}) {
    checkpoint.set_shard_of("lm_head.weight", name);
    const std::string message = checkpoint.refusal();
    EXPECT_TRUE(contains(message, kIndex) && contains(message, "plain name")) << message;
  }
  std::string with_nul = "x";
  with_nul += '\0';
  checkpoint.set_shard_of("lm_head.weight", with_nul + ".safetensors");
  EXPECT_TRUE(contains(checkpoint.refusal(), "plain name"));
}

TEST(CheckpointFiles, AMalformedIndexIsRefused) {
  const Checkpoint checkpoint(sharded_path());
  for (const std::string text :
       {"", "[]", "null", "{}", R"({"weight_map": []})", R"({"weight_map": {}})", R"({"weight_map": {"a": 1}})",
        R"({"weight_map": {"a": null}})", R"({"weight_map": {"a": "x.safetensors", "a": "x.safetensors"}})"}) {
    checkpoint.replace(kIndex, text);
    const std::string message = checkpoint.refusal();
    EXPECT_TRUE(contains(message, kIndex)) << message;
  }
}

TEST(CheckpointFiles, IndexAndShardsMustAgreeBothWays) {
  const Checkpoint checkpoint(sharded_path());
  checkpoint.set_shard_of("model.ghost.weight", kSecondShard);
  std::string message = checkpoint.refusal();
  EXPECT_TRUE(contains(message, "model.ghost.weight") && contains(message, kSecondShard)) << message;

  const Checkpoint other(sharded_path());
  Json index = other.index();
  index["weight_map"].erase("model.layers.1.input_layernorm.weight");
  other.write_index(index);
  message = other.refusal();
  EXPECT_TRUE(contains(message, "model.layers.1.input_layernorm.weight")) << message;
}

TEST(CheckpointFiles, TotalSizeIsAdvice) {
  const Checkpoint checkpoint(sharded_path());
  Json index = checkpoint.index();
  index.erase("metadata");
  checkpoint.write_index(index);
  EXPECT_NO_THROW(check_hf_checkpoint(checkpoint.path(), layout_of(checkpoint.path())));
}

TEST(CheckpointFiles, ATensorInTwoShardsIsRefused) {
  const Checkpoint checkpoint(sharded_path());
  checkpoint.replace("extra.safetensors", read_bytes(checkpoint / kSecondShard));
  Json index = checkpoint.index();
  // The copy is complete, and so is its index: only the original's index is now wrong.
  for (auto& [tensor, shard] : index["weight_map"].items()) {
    if (shard == kSecondShard && tensor != "model.layers.1.input_layernorm.weight") shard = "extra.safetensors";
  }
  checkpoint.write_index(index);
  const std::string message = checkpoint.refusal();
  EXPECT_TRUE(contains(message, "model.layers.1.")) << message;
}

TEST(CheckpointFiles, MissingTensorsAreCounted) {
  const Checkpoint checkpoint(tied_path());
  checkpoint.rewrite("model.safetensors", [](auto& tensors) {
    std::erase_if(tensors, [](const TensorBytes& t) { return contains(t.name, "layers.1."); });
  });
  const std::string message = checkpoint.refusal();
  EXPECT_TRUE(contains(message, "model.layers.1.input_layernorm.weight\" and 10 more")) << message;
}

TEST(CheckpointFiles, AMissingHeadPointsToTying) {
  const Checkpoint checkpoint(tied_path());
  Json config = base::read_json_file(checkpoint / "config.json");
  config["tie_word_embeddings"] = false;
  checkpoint.replace("config.json", config.dump());
  EXPECT_TRUE(contains(checkpoint.refusal(), "tie_word_embeddings"));
}

TEST(CheckpointFiles, ExtraTensorsAreRefused) {
  const Checkpoint checkpoint(tied_path());
  checkpoint.rewrite("model.safetensors", [](auto& tensors) {
    TensorBytes extra = find(tensors, "model.norm.weight");
    extra.name = "model.layers.0.self_attn.q_proj.bias";
    tensors.push_back(extra);
  });
  EXPECT_TRUE(contains(checkpoint.refusal(), "q_proj.bias"));
}

TEST(CheckpointFiles, ATiedModelMayCarryItsHead) {
  const Checkpoint checkpoint(tied_path());
  checkpoint.rewrite("model.safetensors", [](auto& tensors) {
    TensorBytes head = find(tensors, "model.embed_tokens.weight");
    head.name = "lm_head.weight";
    tensors.push_back(head);
  });
  EXPECT_NO_THROW(check_hf_checkpoint(checkpoint.path(), layout_of(checkpoint.path())));
}

// The golden model with a head of its own, whose config.json is made to say that it has none.
TEST(CheckpointFiles, ATiedHeadOfItsOwnIsRefusedWithBothNames) {
  const Checkpoint checkpoint(sharded_path());
  Json config = base::read_json_file(checkpoint / "config.json");
  config["tie_word_embeddings"] = true;
  checkpoint.replace("config.json", config.dump());
  const CheckpointFiles files(checkpoint.path());
  const Layout layout = layout_of(checkpoint.path());
  EXPECT_NO_THROW(match_layout(files, layout)) << "headers tell no difference";
  const auto shard = checkpoint.index().at("weight_map").at("lm_head.weight").get<std::string>();
  EXPECT_EQ(base::refusal_of([&] { check_twins(files, layout); }),
            checkpoint / shard +
                ": tensor \"lm_head.weight\" has other values than \"model.embed_tokens.weight\", to which config.json "
                "ties it: if the head is its own, set tie_word_embeddings to false there, else remove lm_head.weight "
                "from the file");
}

TEST(CheckpointFiles, ATiedHeadMustBeACopyInEveryWay) {
  using Values = std::vector<std::byte>;
  using Change = std::function<void(TensorBytes&, Values&)>;
  const auto check = [](const Change& change) {
    const Checkpoint checkpoint(tied_path());
    Values values;
    checkpoint.rewrite("model.safetensors", [&](auto& tensors) {
      TensorBytes head = find(tensors, "model.embed_tokens.weight");
      head.name = "lm_head.weight";
      values.assign(head.bytes.begin(), head.bytes.end());
      change(head, values);
      head.bytes = values;
      tensors.push_back(head);
    });
    const CheckpointFiles files(checkpoint.path());
    const Layout layout = layout_of(checkpoint.path());
    match_layout(files, layout);
    check_twins(files, layout);
  };
  EXPECT_NO_THROW(check([](TensorBytes&, Values&) {}));
  const std::map<std::string, Change> changes = {
      {"has another dtype than", [](TensorBytes& head, Values&) { head.dtype = "I32"; }},
      {"has another shape than", [](TensorBytes& head, Values&) { std::swap(head.shape[0], head.shape[1]); }},
      {"has other values than", [](TensorBytes&, Values& values) { values.back() ^= std::byte{1}; }}};
  for (const auto& entry : changes) {
    const std::string message = base::refusal_of([&] { check(entry.second); });
    EXPECT_TRUE(contains(message, "\"lm_head.weight\" " + entry.first + " \"model.embed_tokens.weight\"")) << message;
  }
}

// A reward model has no matrix of logits, whatever its file has left of one.
TEST(CheckpointFiles, AHeadThatARewardModelDoesNotUseIsNotCompared) {
  const Checkpoint checkpoint(sharded_path());
  Json json = base::read_json_file(checkpoint / "config.json");
  json["architectures"] = {"Qwen3ForSequenceClassification"};
  checkpoint.replace("config.json", json.dump());
  const model::ModelConfig config = model::read_reward_model_config(checkpoint.path());
  ASSERT_TRUE(config.tied_embeddings);
  const CheckpointFiles files(checkpoint.path());
  EXPECT_NO_THROW(check_twins(files, model::build_reward_layout(config)));
  EXPECT_THROW(check_twins(files, model::build_layout(config)), UserError);
}

TEST(CheckpointFiles, AWrongShapeNamesBothShapes) {
  const Checkpoint checkpoint(tied_path());
  checkpoint.rewrite("model.safetensors", [](auto& tensors) {
    std::swap(find(tensors, "model.layers.2.mlp.down_proj.weight").shape[0],
              find(tensors, "model.layers.2.mlp.down_proj.weight").shape[1]);
  });
  const std::string message = checkpoint.refusal();
  EXPECT_TRUE(contains(message, "model.layers.2.mlp.down_proj.weight\" has shape [160, 64]")) << message;
  EXPECT_TRUE(contains(message, "asks for [64, 160]")) << message;
}

TEST(CheckpointFiles, AnIntegerWeightIsRefused) {
  const Checkpoint checkpoint(tied_path());
  checkpoint.rewrite("model.safetensors", [](auto& tensors) { find(tensors, "model.norm.weight").dtype = "I32"; });
  const std::string message = checkpoint.refusal();
  EXPECT_TRUE(contains(message, "I32") && contains(message, "model.norm.weight")) << message;
}

// transformers leaves config.json beside an adapter in some folders, which are read as a model's then.
TEST(CheckpointFiles, AnAdapterBesideAConfigurationIsNamed) {
  const Checkpoint checkpoint(tied_path());
  std::filesystem::rename(checkpoint / "model.safetensors", checkpoint / "adapter_model.safetensors");
  EXPECT_TRUE(contains(checkpoint.refusal(), "remove config.json to read it as an adapter")) << checkpoint.refusal();
}

TEST(CheckpointFiles, NoWeightsOrPickledOnesAreRefused) {
  const Checkpoint checkpoint(tied_path());
  std::filesystem::remove(checkpoint / "model.safetensors");
  EXPECT_TRUE(contains(checkpoint.refusal(), "neither model.safetensors"));
  checkpoint.replace("pytorch_model.bin", "PK");
  EXPECT_TRUE(contains(checkpoint.refusal(), "can run code"));
}

TEST(CheckpointFiles, OneFileBeforeAnIndexAsTransformersDoes) {
  const Checkpoint checkpoint(tied_path());
  checkpoint.replace(kIndex, "not even JSON");
  EXPECT_NO_THROW(check_hf_checkpoint(checkpoint.path(), layout_of(checkpoint.path())));
}

}  // namespace
}  // namespace tandem::weights
