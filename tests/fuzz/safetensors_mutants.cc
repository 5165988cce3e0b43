// Mutants of good safetensors files and Tandem's answer to each, for safetensors_differential.py to ask the official
// library the same.
//
//   safetensors_mutants COUNT SEED      to stdout, each: a file's bytes, then JSON, both behind their 4-byte length
//
// The JSON is {"refused": why} or {"tensors": {name: [dtype, shape, begin, end]}, "metadata": {...}}.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/json.h"
#include "tests/fuzz/target.h"
#include "tests/weights/header_mutator.h"
#include "weights/safetensors.h"

namespace {

using tandem::base::Json;
using tandem::weights::HeaderMutator;

std::string file_of(const std::string& header, uint64_t stated_bytes, size_t data_bytes) {
  std::string file(8, '\0');
  for (size_t i = 0; i < file.size(); ++i) file[i] = static_cast<char>(stated_bytes >> (8 * i));
  file += header;
  for (size_t i = 0; i < data_bytes; ++i) file += static_cast<char>(i);  // so that misplaced data is seen
  return file;
}

// Mostly the header is changed, sometimes what it is measured against.
std::string mutant(HeaderMutator& mutator) {
  const auto [good, data_bytes] = mutator.good_header();
  const auto size = static_cast<size_t>(data_bytes);
  switch (mutator.below(16)) {
    case 0: return file_of(good, good.size(), size + mutator.below(3));
    case 1: return file_of(good, good.size() + mutator.below(5), size + mutator.below(5));
    case 2: return mutator.mutate(file_of(good, good.size(), size));
    case 3: return file_of(std::string(mutator.below(3), ' ') + good, good.size(), size);
    default: break;
  }
  const std::string changed = mutator.mutate(good);
  return file_of(changed, changed.size(), size);
}

Json answer(const std::string& bytes) {
  static const tandem::fuzz::MemoryFile file;
  file.write(bytes);
  try {
    const tandem::weights::SafetensorsFile opened(file.path());
    Json tensors = Json::object();
    for (const auto& [name, tensor] : opened.tensors()) {
      tensors[name] = {tensor.dtype, tensor.shape, tensor.begin_byte, tensor.end_byte};
    }
    return {{"tensors", tensors}, {"metadata", opened.metadata()}};
  } catch (const tandem::UserError& error) {
    return {{"refused", error.what()}};
  }
}

void write(const std::string& bytes) {
  const auto length = static_cast<uint32_t>(bytes.size());
  const bool written = std::fwrite(&length, sizeof length, 1, stdout) == 1 &&
                       std::fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size();
  if (!written) std::exit(1);  // whoever compares has gone
}

}  // namespace

int main(int argc, char** argv) {
  tandem::fuzz::require(argc == 3, "called as COUNT SEED");
  HeaderMutator mutator(std::strtoull(argv[2], nullptr, 10));
  for (uint64_t left = std::strtoull(argv[1], nullptr, 10); left > 0; --left) {
    const std::string bytes = mutant(mutator);
    write(bytes);
    write(tandem::base::dump_json(answer(bytes)));
  }
  return 0;
}
