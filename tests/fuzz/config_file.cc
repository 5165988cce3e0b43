// options/toml: an accepted config file gives options whose own text, as --print-config writes it, reads back to
// the same values. The same bytes are read as a file of tables too, whose mistakes have their places.
#include "options/options.h"
#include "options/tables.h"
#include "tests/fuzz/target.h"

using namespace tandem::fuzz;
using tandem::options::Option;
using tandem::options::Options;

namespace {

// Options of every kind, with every kind of bound.
struct Config {
  int64_t steps = 10;
  double rate = 1e-6;
  bool colocate = false;
  std::string name = "run";
  std::string loss = "grpo";
  std::vector<std::string> stop;
  std::vector<int64_t> devices = {0};
  std::optional<int64_t> seed;
  std::optional<double> limit;
  std::optional<bool> cache;
  std::optional<std::string> note;

  void visit(Options& options) {
    options.option(steps, "steps", "run", "a whole number with bounds").at_least(1).at_most(1e9);
    options.option(rate, "rate", "run", "a number with an open bound").greater_than(0);
    options.option(colocate, "colocate", "run", "a switch");
    options.option(name, "name", "run", "text").required();
    options.option(loss, "loss", "loss", "a choice").one_of({"grpo", "gspo", "dapo"});
    options.option(stop, "stop", "loss", "texts");
    options.option(devices, "devices", "loss", "whole numbers").at_least(0);
    options.option(seed, "seed", "loss", "a whole number or nothing");
    options.option(limit, "limit", "loss", "a number or nothing");
    options.option(cache, "cache", "loss", "a switch or nothing");
    options.option(note, "note", "loss", "text or nothing");
    options.unsupported("vllm-*", "another engine's");
  }
};

class ConfigFile {
 public:
  ConfigFile() { config_.visit(options_); }
  ConfigFile(const ConfigFile&) = delete;
  ConfigFile& operator=(const ConfigFile&) = delete;

  // If there are several mistakes, each must name its place.
  void read(const std::string& path) {
    try {
      options_.parse({"--config", path, "--print-config"});
    } catch (const tandem::options::OptionsError& error) {
      for (const auto& one : error.refused()) require_placed_message(one.flag, path);
      for (const std::string& message : error.others()) require_placed_message(message, path);
      throw tandem::UserError(error.refused().empty() ? error.others().front() : error.refused().front().flag);
    }
  }
  std::string text() const { return options_.config_text(); }

 private:
  Config config_;
  Options options_;
};

// Reads the tables as --eval-config does.
void read_tables(const std::string& path) {
  try {
    const tandem::options::OptionTables tables(path, "eval", "defaults", "datasets");
    for (size_t i = 0; i < tables.size(); ++i) {
      require_placed_message(tables.place(i) + ": x", path);
      Config config;
      Options options;
      config.visit(options);
      tables.read_defaults(options);
      tables.read(i, options);
    }
  } catch (const tandem::options::OptionsError& error) {
    for (const auto& one : error.refused()) require_placed_message(one.flag, path);
    for (const std::string& message : error.others()) require_placed_message(message, path);
    throw tandem::UserError(error.refused().empty() ? error.others().front() : error.refused().front().flag);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const MemoryFile file;
  file.write(text_of(data, size));
  accepts([] { read_tables(file.path()); },
          [](std::string_view message) { require_placed_message(message, file.path()); });
  ConfigFile given;
  if (!accepts([&] { given.read(file.path()); },
               [](std::string_view message) { require_placed_message(message, file.path()); })) {
    return 0;
  }
  const std::string text = given.text();
  constexpr size_t kMaxFileBytes = size_t{1} << 20;  // what is accepted may be longer when written with spaces
  if (text.size() > kMaxFileBytes) return 0;
  file.write(text);
  ConfigFile again;
  const bool reads_back =
      accepts([&] { again.read(file.path()); },
              [&](std::string_view message) { require(false, "its own text is accepted", message); });
  require(reads_back && again.text() == text, "its own text reads back to the same values", text);
  return 0;
}
