// Drives one fuzz target without libFuzzer, so that every build asks it: the corpus, then random changes to it.
//
//   fuzz_json [--runs N] [--seed S] PATH...      files and folders of the corpus; the same seed makes the same inputs
//
// An input that breaks a promise, crashes or hangs is left in PROGRAM-crash; given as PATH with --runs 0 it does so
// again.
#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/fuzz/target.h"

extern "C" {
// Targets may bring a mutator that knows their format, as with libFuzzer.
__attribute__((weak)) size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed);
// The sanitizers' runtime defines this function, if the build has one.
__attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)(void));
}

namespace {

constexpr size_t kMaxBytes = 65536;
constexpr unsigned kDeadlineSeconds = 30;

std::mt19937_64 engine;
std::vector<std::string> corpus;
std::vector<std::string> words;  // what stands in quotes in the corpus
std::string crash_path;
std::string present;  // the input that runs

size_t below(size_t bound) { return std::uniform_int_distribution<size_t>(0, bound - 1)(engine); }

void keep_present_input() {
  std::ofstream(crash_path, std::ios::binary) << present;
  std::fprintf(stderr, "the input is kept in %s\n", crash_path.c_str());
}

void on_signal(int signal) {
  keep_present_input();
  std::fprintf(stderr, "signal %d (%s)\n", signal, signal == SIGALRM ? "the input hangs" : strsignal(signal));
  std::_Exit(1);
}

void run(const std::string& input) {
  present = input;
  ::alarm(kDeadlineSeconds);
  const std::vector<uint8_t> exact(input.begin(), input.end());  // of exact size: a read past it is seen
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
  ::alarm(0);
}

void add_words(const std::string& text) {
  for (size_t begin = text.find('"'); begin != std::string::npos;) {
    const size_t end = text.find('"', begin + 1);
    if (end == std::string::npos || words.size() > 5000) return;
    if (end - begin < 64) words.push_back(text.substr(begin, end + 1 - begin));
    begin = text.find('"', end + 1);
  }
}

void add_corpus(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) {
    std::vector<std::filesystem::path> entries(std::filesystem::directory_iterator(path), {});
    std::sort(entries.begin(), entries.end());
    for (const auto& entry : entries) add_corpus(entry);
    return;
  }
  std::ifstream in(path, std::ios::binary);
  tandem::fuzz::require(in.good(), "the corpus can be read", path.string());
  corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  add_words(corpus.back());
}

std::string piece() {
  static const std::vector<std::string> kPieces = {"0",
                                                   "-1",
                                                   "18446744073709551615",
                                                   "9223372036854775807",
                                                   "1e400",
                                                   "1.5",
                                                   "null",
                                                   "true",
                                                   "[",
                                                   "]",
                                                   "{",
                                                   "}",
                                                   ",",
                                                   ":",
                                                   "\"",
                                                   "\n",
                                                   "\\n",
                                                   "\\",
                                                   "\\\"",
                                                   " ",
                                                   "\\u0000",
                                                   "\xff",
                                                   "\xc3\xa9",
                                                   "\\ud800",
                                                   "=",
                                                   "#",
                                                   "'",
                                                   ".",
                                                   "\r",
                                                   "\t",
                                                   "\xEF\xBB\xBF",
                                                   "[[[[[[[[[[[[[[[["};
  if (below(3) == 0 && !words.empty()) return words[below(words.size())];
  std::string text = kPieces[below(kPieces.size())];
  if (below(10) == 0) text = std::string(1, '\0');
  return text;
}

void change(std::string& text) {
  if (text.empty()) text = piece();
  const size_t at = below(text.size());
  const size_t length = 1 + below(std::min<size_t>(text.size() - at, 16));
  switch (below(8)) {
    case 0: text[at] = static_cast<char>(below(256)); break;
    case 1: text[at] = static_cast<char>(text[at] ^ (1 << below(8))); break;
    case 2: text.erase(at, length); break;
    case 3: text.insert(at, piece()); break;
    case 4: text.replace(at, length, piece()); break;
    case 5: text.insert(below(text.size()), text.substr(at, length)); break;
    case 6: {
      const std::string& other = corpus[below(corpus.size())];
      if (!other.empty()) text.insert(at, other, below(other.size()), 1 + below(64));
      break;
    }
    default: {
      const size_t digit = text.find_first_of("0123456789", at);
      if (digit != std::string::npos) text[digit] = static_cast<char>('0' + below(10));
    }
  }
}

}  // namespace

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  for (size_t i = 1 + below(3); i > 0; --i) change(text);
  text.resize(std::min(text.size(), max_size));
  std::copy(text.begin(), text.end(), data);
  return text.size();
}

int main(int argc, char** argv) {
  uint64_t num_runs = 0, seed = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--runs" && i + 1 < argc) {
      num_runs = std::strtoull(argv[++i], nullptr, 10);
    } else if (word == "--seed" && i + 1 < argc) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else {
      add_corpus(word);
    }
  }
  crash_path = std::string(argv[0]) + "-crash";
  engine.seed(seed);
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(keep_present_input);
  for (const int signal : {SIGABRT, SIGALRM}) std::signal(signal, on_signal);
  std::printf("%zu files, then %llu changed ones of --seed %llu\n", corpus.size(),
              static_cast<unsigned long long>(num_runs), static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  tandem::fuzz::require(!corpus.empty(), "there is a corpus");
  for (const std::string& input : corpus) run(input);
  std::vector<uint8_t> buffer(kMaxBytes);
  for (uint64_t i = 0; i < num_runs; ++i) {
    const std::string& from = corpus[below(corpus.size())];
    const size_t size = std::min(from.size(), kMaxBytes);
    std::copy_n(from.begin(), size, buffer.begin());
    const bool custom = LLVMFuzzerCustomMutator != nullptr;
    const size_t changed =
        custom ? LLVMFuzzerCustomMutator(buffer.data(), size, kMaxBytes, static_cast<unsigned>(engine()))
               : LLVMFuzzerMutate(buffer.data(), size, kMaxBytes);
    run(std::string(buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(changed)));
  }
  std::puts("all promises held");
  return 0;
}
