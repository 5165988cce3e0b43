// The safetensors reader and writer agree with the official library on 107 files.
#include "weights/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "base/json.h"
#include "tandem/error.h"
#include "tests/base/thrown.h"
#include "tests/golden/golden.h"
#include "tests/weights/file_bytes.h"

namespace tandem::weights {
namespace {

using base::Json;

std::string golden_folder() { return golden::directory() + "/"; }

Json cases_of(const std::string& folder) {
  return base::read_json_file(golden_folder() + folder + "/cases.json").at("cases");
}

std::string hex_of(const std::vector<std::byte>& bytes) {
  std::string hex;
  for (const std::byte byte : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[static_cast<int>(byte) >> 4];
    hex += kDigits[static_cast<int>(byte) & 15];
  }
  return hex;
}

std::vector<std::byte> bytes_of(const SafetensorsFile& file, const TensorInfo& info) {
  std::vector<std::byte> bytes(info.num_bytes());
  file.read(info, 0, bytes);
  return bytes;
}

// Returns a file with this header text and this many zero bytes of data.
std::string file_bytes(const std::string& header, int64_t data_bytes) {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + std::string(data_bytes, '\0');
}

std::string refusal(const std::string& header, int64_t data_bytes) {
  return base::refusal_of([&] { parse_safetensors_header(header, data_bytes, "x.safetensors"); });
}

TEST(Safetensors, EveryGoodFileReadsAsTheOfficialLibraryReadsIt) {
  int num_tensors = 0;
  for (const Json& entry : cases_of("safetensors_good")) {
    const auto name = entry.at("file").get<std::string>();
    SCOPED_TRACE(name);
    const SafetensorsFile file(golden_folder() + name);
    const Json& tensors = entry.at("deserialize").at("tensors");
    EXPECT_EQ(file.tensors().size(), tensors.size());
    for (const Json& expected : tensors) {
      const TensorInfo& info = file.tensor(expected.at("name").get<std::string>());
      EXPECT_EQ(info.dtype, expected.at("dtype").get<std::string>());
      EXPECT_EQ(info.shape, expected.at("shape").get<std::vector<int64_t>>());
      EXPECT_EQ(hex_of(bytes_of(file, info)), expected.at("hex").get<std::string>());
      ++num_tensors;
    }
    std::map<std::string, std::string> metadata;
    if (const Json& expected = entry.at("safe_open").at("metadata"); !expected.is_null()) {
      metadata = expected.get<std::map<std::string, std::string>>();
    }
    EXPECT_EQ(file.metadata(), metadata);
  }
  EXPECT_GT(num_tensors, 60);
}

TEST(Safetensors, EveryBadFileIsRefusedWithItsName) {
  int num_files = 0;
  std::set<std::string> lax;
  for (const Json& entry : cases_of("safetensors_bad")) {
    const std::string path = golden_folder() + entry.at("file").get<std::string>();
    SCOPED_TRACE(path);
    if (entry.at("deserialize").at("loads").get<bool>()) lax.insert(path);
    const std::string message = base::refusal_of([&] { SafetensorsFile file(path); });
    EXPECT_TRUE(message.starts_with(path + ": ")) << message;
    ++num_files;
  }
  EXPECT_EQ(num_files, 87);
  EXPECT_EQ(lax.size(), 5U);  // accepted by the official library, refused by ours
}

TEST(Safetensors, RefusesWhatTheSpecificationForbids) {
  const std::string tensor = R"("t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})";
  EXPECT_NO_THROW(parse_safetensors_header("{" + tensor + "}", 2, "x"));
  EXPECT_NE(refusal(" {" + tensor + "}", 2).find("begin with '{'"), std::string::npos);
  const std::string same_name = R"("\u0074":{"dtype":"U8","shape":[0],"data_offsets":[2,2]})";
  EXPECT_NE(refusal("{" + tensor + "," + same_name + "}", 2).find("given twice"), std::string::npos);
  EXPECT_NE(refusal(R"({"__metadata__":{"a":"1","a":"2"},)" + tensor + "}", 2).find("twice"), std::string::npos);
  EXPECT_NE(refusal("{" + tensor + "}" + std::string(1, '\0'), 2).find("NUL"), std::string::npos);
  EXPECT_NE(refusal(R"({"t":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}})", 0).find("negative"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"x":1}})", 2).find("unknown field"),
            std::string::npos);
}

TEST(Safetensors, LimitsHold) {
  const std::string name(4097, 'n');
  EXPECT_NE(refusal("{\"" + name + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0).find("longer"),
            std::string::npos);
  std::string dims = "0";
  for (int i = 1; i < 32; ++i) dims += ",1";
  const auto header = [](const std::string& shape) {
    return R"({"t":{"dtype":"U8","shape":[)" + shape + R"(],"data_offsets":[0,0]}})";
  };
  EXPECT_NO_THROW(parse_safetensors_header(header(dims), 0, "x"));
  EXPECT_NE(refusal(header(dims + ",1"), 0).find("dims"), std::string::npos);
  EXPECT_NO_THROW(parse_safetensors_header(header("0,9223372036854775807"), 0, "x"));
  EXPECT_NE(refusal(header("0,9223372036854775808"), 0).find("too large"), std::string::npos);
  const std::string deep(5000, '[');
  EXPECT_NE(refusal("{\"t\":" + deep, 0).find("a list"), std::string::npos);
}

TEST(Safetensors, MessagesStayOnOneLineWhateverTheName) {
  const std::string message = refusal(R"({"a\nb\u001b[31m":{"dtype":"U8","shape":[1],"data_offsets":[0,2]}})", 2);
  EXPECT_NE(message.find(R"("a\nb\u001b[31m")"), std::string::npos) << message;
  EXPECT_LT(quoted_name(std::string(100000, 'x')).size(), 100U);
  EXPECT_NO_THROW(quoted_name("caf\xc3\xa9 \xff"));
}

TEST(Safetensors, ATensorReadsInAnySplit) {
  const SafetensorsFile file(golden_folder() + "safetensors_good/one_tensor.safetensors");
  const TensorInfo& info = file.tensor("weight");
  const std::vector<std::byte> whole = bytes_of(file, info);
  for (int64_t begin = 0; begin <= info.num_bytes(); ++begin) {
    for (int64_t end = begin; end <= info.num_bytes(); ++end) {
      std::vector<std::byte> part(end - begin);
      file.read(info, begin, part);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + begin));
    }
  }
  std::vector<std::byte> part(1);
  EXPECT_THROW(file.read(info, info.num_bytes(), part), BugError);
  EXPECT_THROW(file.read(info, -1, part), BugError);
  EXPECT_NE(base::refusal_of([&] { file.tensor("absent"); }).find("absent"), std::string::npos);
}

TEST(Safetensors, AFileThatShrinksWhileOpenIsAnErrorNotAFault) {
  const TemporaryDirectory directory;
  const std::string path = directory / "t.safetensors";
  write_bytes(path, file_bytes(R"({"t":{"dtype":"U8","shape":[64],"data_offsets":[0,64]}})", 64));
  const SafetensorsFile file(path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  std::vector<std::byte> bytes(64);
  EXPECT_NE(base::refusal_of([&] { file.read(file.tensor("t"), 0, bytes); }).find(path), std::string::npos);
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const TemporaryDirectory directory;
  const std::string whole = read_bytes(golden_folder() + "safetensors_good/two_tensors_metadata.safetensors");
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::string path = directory / "t.safetensors";
    write_bytes(path, whole.substr(0, size));
    EXPECT_THROW(SafetensorsFile file(path), UserError) << size;
  }
  EXPECT_THROW(SafetensorsFile file(directory / "absent.safetensors"), UserError);
}

TEST(Safetensors, WritesWhatItReads) {
  const TemporaryDirectory directory;
  const std::vector<float> floats = {1.0F, -2.5F, 3.0F};
  const std::vector<int64_t> longs = {1, -1};
  const std::string bytes = "abcde";
  std::vector<TensorBytes> tensors = {
      {.name = "bytes", .dtype = "U8", .shape = {5}, .bytes = std::as_bytes(std::span(bytes))},
      {.name = "empty", .dtype = "F32", .shape = {0, 7}, .bytes = {}},
      {.name = "quote\"\n\xc3\xa9", .dtype = "F32", .shape = {3, 1}, .bytes = std::as_bytes(std::span(floats))},
      {.name = "longs", .dtype = "I64", .shape = {2}, .bytes = std::as_bytes(std::span(longs))},
      {.name = "scalar", .dtype = "F32", .shape = {}, .bytes = std::as_bytes(std::span(floats).first(1))},
  };
  const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"note", "line\nbreak"}};
  const std::string path = directory / "t.safetensors";
  write_safetensors(path, tensors, metadata);

  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata(), metadata);
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const TensorBytes& tensor : tensors) {
    const TensorInfo& info = file.tensor(tensor.name);
    EXPECT_EQ(info.dtype, tensor.dtype);
    EXPECT_EQ(info.shape, tensor.shape);
    const std::vector<std::byte> read = bytes_of(file, info);
    EXPECT_TRUE(std::equal(read.begin(), read.end(), tensor.bytes.begin(), tensor.bytes.end())) << tensor.name;
    EXPECT_EQ(info.begin_byte % (safetensors_dtype_bits(tensor.dtype) / 8), 0) << tensor.name;
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, read_bytes(path).data(), 8);
  EXPECT_EQ(header_bytes % 8, 0U);
}

// Bytes on a device are copied out a piece at a time and give the same file.
TEST(Safetensors, WritesBytesThatLieElsewhereInPieces) {
  const TemporaryDirectory directory;
  std::vector<std::byte> bytes(static_cast<size_t>(2 * kStagingBytes + 3));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 251);
  const TensorBytes here = {
      .name = "t", .dtype = "U8", .shape = {static_cast<int64_t>(bytes.size())}, .bytes = std::span(bytes)};
  TensorBytes elsewhere = {.name = here.name, .dtype = here.dtype, .shape = here.shape, .bytes = {}};
  int64_t pieces = 0;
  elsewhere.copy_out = [&](int64_t offset, std::span<std::byte> out) {
    EXPECT_LE(static_cast<int64_t>(out.size()), kStagingBytes);
    std::copy_n(bytes.begin() + offset, out.size(), out.begin());
    ++pieces;
  };
  write_safetensors(directory / "here.safetensors", {here});
  write_safetensors(directory / "elsewhere.safetensors", {elsewhere});
  EXPECT_EQ(read_bytes(directory / "here.safetensors"), read_bytes(directory / "elsewhere.safetensors"));
  EXPECT_EQ(pieces, 3);
}

TEST(Safetensors, WritesAnEmptyFileThatReadsBack) {
  const TemporaryDirectory directory;
  write_safetensors(directory / "t.safetensors", {});
  EXPECT_TRUE(SafetensorsFile(directory / "t.safetensors").tensors().empty());
}

TEST(Safetensors, WriterRefusesWhatNoReaderWouldTake) {
  const TemporaryDirectory directory;
  const std::string path = directory / "t.safetensors";
  const std::string bytes = "ab";
  const TensorBytes good = {.name = "t", .dtype = "U8", .shape = {2}, .bytes = std::as_bytes(std::span(bytes))};
  TensorBytes wrong_size = good, wrong_dtype = good, wrong_name = good;
  wrong_size.shape = {3};
  wrong_dtype.dtype = "u8";
  wrong_name.name = "__metadata__";
  EXPECT_THROW(write_safetensors(path, {good, good}), BugError);
  EXPECT_THROW(write_safetensors(path, {wrong_size}), BugError);
  EXPECT_THROW(write_safetensors(path, {wrong_dtype}), BugError);
  EXPECT_THROW(write_safetensors(path, {wrong_name}), BugError);
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace tandem::weights
