#include "report/run_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <set>
#include <span>
#include <string_view>
#include <system_error>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "base/message_text.h"
#include "report/step_line.h"

namespace tandem::report {

namespace {

using base::Json;

constexpr size_t kMaxRolloutFiles = 12, kMaxEvalSets = 4, kSamplesPerFile = 8;
// Beyond these, samples are shown while all of the page have room in so many bytes of HTML.
constexpr size_t kSamplesBytes = size_t{10} << 20;
constexpr size_t kMaxPieces = 40;  // limit for one sample
constexpr size_t kMaxTokenBytes = 512;
constexpr int64_t kMaxSampleFileBytes = int64_t{256} << 20;
constexpr int64_t kTailBytes = int64_t{8} << 20;  // of memory_timeline.jsonl; a step has some thousand events
constexpr int64_t kLogTailBytes = int64_t{64} << 10;
constexpr int64_t kMaxConfigBytes = int64_t{1} << 20;
constexpr size_t kMaxNameBytes = 120;

// Reads the lines of a file as it was when it was opened: later lines of a running run are not seen.
class LineReader {
 public:
  explicit LineReader(const std::string& path, int64_t begin = 0, int64_t end = std::numeric_limits<int64_t>::max())
      : file_(path), at_(begin), end_(std::min(end, file_.size())) {}

  // Reads the next line without its end; returns false after the last. A last line without '\n' does not count:
  // is_cut() reports it.
  bool next(std::string& line) {
    line.clear();
    bool is_too_long = false;
    while (true) {
      if (begin_ == buffer_.size() && !fill()) {
        is_cut_ = !line.empty() || is_too_long;
        return false;
      }
      const size_t newline = buffer_.find('\n', begin_);
      const size_t stop = newline == std::string::npos ? buffer_.size() : newline;
      if (static_cast<int64_t>(line.size() + stop - begin_) > kMaxLineBytes) is_too_long = true;
      if (is_too_long) {
        line.clear();
      } else {
        line.append(buffer_, begin_, stop - begin_);
      }
      begin_ = stop;
      if (newline == std::string::npos) continue;
      ++begin_;
      ++number_;
      if (!is_too_long) return true;
      ++num_too_long_;
      is_too_long = false;
    }
  }

  int64_t number() const { return number_; }  // number of the last line, from 1
  int64_t num_too_long() const { return num_too_long_; }
  bool is_cut() const { return is_cut_; }

 private:
  bool fill() {
    constexpr int64_t kChunkBytes = 1 << 20;
    const int64_t bytes = std::min(kChunkBytes, end_ - at_);
    if (bytes <= 0) return false;
    buffer_.resize(static_cast<size_t>(bytes));
    file_.read_at(at_, std::as_writable_bytes(std::span(buffer_)));
    at_ += bytes;
    begin_ = 0;
    return true;
  }

  base::ReadableFile file_;
  int64_t at_, end_, number_ = 0, num_too_long_ = 0;
  std::string buffer_;
  size_t begin_ = 0;
  bool is_cut_ = false;
};

bool is_regular(const std::string& path) {
  std::error_code unknown;
  return std::filesystem::is_regular_file(path, unknown);
}

// Returns the end of a file, from the beginning of a line.
std::string tail_of(const std::string& path, int64_t max_bytes) {
  const base::ReadableFile file(path);
  const int64_t begin = std::max<int64_t>(0, file.size() - max_bytes);
  std::string text(static_cast<size_t>(file.size() - begin), '\0');
  file.read_at(begin, std::as_writable_bytes(std::span(text)));
  if (begin > 0) text.erase(0, std::min(text.size(), text.find('\n') + 1));
  return text;
}

// Returns a metric: a number, or the text that base::dump_json() writes for one that JSON does not have.
std::optional<double> metric_value(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_string()) return std::nullopt;
  const auto& text = value.get_ref<const std::string&>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

double number_at(const Json& record, const char* name) {
  const auto found = record.find(name);
  if (found == record.end()) return 0.0;
  const std::optional<double> value = metric_value(*found);
  return value && std::isfinite(*value) ? *value : 0.0;
}

// Places records on the axes. A step of the optimizer is written before the record of its rollout, which alone tells
// how many steps the rollout had.
class Placing {
 public:
  Placing(std::vector<Position>& positions, bool has_rollouts) : positions_(positions), has_rollouts_(has_rollouts) {}

  void add(std::string_view kind, double step, const Json& record) {
    const double time_s = number_at(record, "time_s");
    if (time_s < last_time_s_) resumed_s_ += last_time_s_;  // each process of a run counts from 0
    last_time_s_ = time_s;
    now_.seconds = resumed_s_ + time_s;
    if (kind == "rollout") {
      const double num_ranks = std::max(1.0, number_at(record, "perf/rollout_ranks"));
      now_.tokens +=
          number_at(record, "perf/tokens_per_gpu_per_sec") * number_at(record, "perf/rollout_time") * num_ranks;
      place_pending(step, static_cast<double>(positions_.size() - first_pending_));
      now_.rollouts = step + 1;
    } else if (kind == "eval") {
      now_.rollouts = std::max(now_.rollouts, step);
    } else if (kind == "train" && !has_rollouts_) {
      now_.tokens += number_at(record, "perf/actor_train_tok_per_s") * number_at(record, "perf/actor_train_time");
      now_.rollouts = step + 1;
    }
    if (kind != "train" || !has_rollouts_) finish(now_.rollouts);
    positions_.push_back(now_);
    if (kind != "train" || !has_rollouts_) first_pending_ = positions_.size();
  }

  // Handles steps of a rollout that a run did not finish.
  void end() {
    place_pending(now_.rollouts, std::max(steps_per_rollout_, static_cast<double>(positions_.size() - first_pending_)));
  }

 private:
  void place_pending(double rollout, double num_steps) {
    const size_t first = first_pending_;
    for (size_t i = first; i < positions_.size(); ++i) {
      positions_[i].rollouts = rollout + static_cast<double>(i - first + 1) / num_steps;
      positions_[i].tokens = now_.tokens;
    }
    if (positions_.size() > first) steps_per_rollout_ = static_cast<double>(positions_.size() - first);
    first_pending_ = positions_.size();
  }
  // If an evaluation comes among unfinished steps, those were of a rollout that was given up.
  void finish(double rollout) {
    if (first_pending_ < positions_.size()) place_pending(rollout, std::max(1.0, steps_per_rollout_));
  }

  std::vector<Position>& positions_;
  const bool has_rollouts_;
  Position now_;
  size_t first_pending_ = 0;  // first since the last record of a rollout
  double steps_per_rollout_ = 1.0, last_time_s_ = 0.0, resumed_s_ = 0.0;
};

// Describes the defects of the lines of one file, as sentences.
struct BadLines {
  int64_t count = 0, first = 0;

  void add(int64_t line) {
    if (count++ == 0) first = line;
  }
  void say(const std::string& file, const LineReader& reader, std::vector<std::string>& left_out) const {
    if (count > 0)
      left_out.push_back(fmt::format("{}: {} no records and are left out; the first is line {}.", file,
                                     count == 1 ? "1 line is" : base::with_commas(count) + " lines are", first));
    if (reader.num_too_long() > 0)
      left_out.push_back(
          fmt::format("{}: {} longer than {} MiB and left out.", file,
                      base::counted(reader.num_too_long(), "line") + (reader.num_too_long() == 1 ? " is" : " are"),
                      kMaxLineBytes >> 20));
    if (reader.is_cut())
      left_out.push_back(
          file + ": the last line is not finished and is left out; the run is writing it, or was killed there.");
  }
};

// Returns one JSON object, or null.
Json parsed_line(const std::string& line) {
  try {
    Json value = base::parse_json(line, "line");
    return value.is_object() ? value : Json(nullptr);
  } catch (const UserError&) {
    return nullptr;
  }
}

void read_metrics(const std::string& path, RunFiles& run) {
  TANDEM_USER_CHECK(
      is_regular(path),
      fmt::format("{}: the run has no records (no metrics.jsonl); look again after its first rollout", run.path));
  LineReader reader(path);
  BadLines bad;
  Placing placing(run.positions, run.has_rollouts);
  std::string line;
  while (reader.next(line)) {
    const Json record = parsed_line(line);
    if (!record.is_object() || record.empty()) {
      bad.add(reader.number());
      continue;
    }
    // The first key is the axis that the record counts on: "rollout/step".
    const std::string& axis = record.begin().key();
    const std::optional<double> step = metric_value(record.begin().value());
    if (!axis.ends_with("/step") || !step || !std::isfinite(*step)) {
      bad.add(reader.number());
      continue;
    }
    placing.add(std::string_view(axis).substr(0, axis.size() - 5), *step, record);
    const auto at = static_cast<uint32_t>(run.positions.size() - 1);
    for (const auto& [name, value] : record.items()) {
      if (name == axis || name == "time_s") continue;
      const std::optional<double> number = metric_value(value);
      if (!number) continue;
      Curve& curve = run.curves[name];
      curve.at.push_back(at);
      curve.values.push_back(without_rounding(name, *number));
    }
  }
  placing.end();
  bad.say("metrics.jsonl", reader, run.left_out);
  TANDEM_USER_CHECK(!run.positions.empty(),
                    fmt::format("{}: the run has no records (metrics.jsonl has none); look again after its first "
                                "rollout",
                                run.path));
}

void read_config(const std::string& path, RunFiles& run) {
  if (!is_regular(path)) {
    run.left_out.emplace_back("config.toml is missing, so the options of the run are not known.");
    return;
  }
  run.config_text = tail_of(path, kMaxConfigBytes);
  std::string_view rest = run.config_text;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const size_t equals = line.find(" = ");
    if (equals != std::string_view::npos && !line.starts_with('#'))
      run.config[std::string(line.substr(0, equals))] = line.substr(equals + 3);
  }
}

void read_memory(const std::string& path, RunFiles& run) {
  if (!is_regular(path)) return;
  const std::string text = tail_of(path, kTailBytes);
  std::string_view rest = text;
  Json last;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    const bool is_whole = line.size() < rest.size();
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (!is_whole || !line.starts_with("{\"event\":\"step\"")) continue;
    if (Json record = parsed_line(std::string(line)); record.is_object()) last = std::move(record);
  }
  if (!last.is_object() || !last.contains("phases") || !last["phases"].is_object()) return;
  const auto bytes_at = [](const Json& object, const std::string& name) -> int64_t {
    const auto found = object.find(name);
    return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
  };
  for (const auto& [phase, of_phase] : last["phases"].items()) {
    if (!of_phase.is_object()) continue;
    const Json most = of_phase.value("most", Json::object()), planned = of_phase.value("planned", Json::object());
    std::set<std::string> seen;
    for (const Json& by_tag : {planned, most}) {
      if (!by_tag.is_object()) continue;
      for (const auto& [tag, bytes] : by_tag.items()) {
        if (seen.insert(tag).second) run.memory.push_back({phase, tag, bytes_at(most, tag), bytes_at(planned, tag)});
      }
    }
    run.memory.push_back({phase, "", bytes_at(of_phase, "most_at_once"), bytes_at(of_phase, "planned_at_once")});
  }
}

// Cuts a long text where a character ends.
std::string shortened(const std::string& text, size_t begin_bytes = kTextBeginBytes, size_t end_bytes = kTextEndBytes) {
  if (text.size() <= begin_bytes + end_bytes + 64) return text;
  size_t begin = begin_bytes, end = text.size() - end_bytes;
  const auto is_inside = [&](size_t at) { return (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U; };
  while (begin > 0 && is_inside(begin)) --begin;
  while (end < text.size() && is_inside(end)) ++end;
  return fmt::format("{}\n[... {} bytes are left out here ...]\n{}", text.substr(0, begin),
                     base::with_commas(static_cast<int64_t>(end - begin)), text.substr(end));
}

std::string whole_text_at(const Json& record, const char* name) {
  const auto found = record.find(name);
  if (found == record.end() || found->is_null()) return "";
  return found->is_string() ? found->get<std::string>() : base::dump_json(*found);
}

std::string text_at(const Json& record, const char* name) { return shortened(whole_text_at(record, name)); }

std::optional<double> optional_at(const Json& record, const char* name) {
  const auto found = record.find(name);
  return found == record.end() ? std::nullopt : metric_value(*found);
}

int64_t count_at(const Json& record, const char* name) {
  const auto found = record.find(name);
  return found != record.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

// Returns the tokens of a record, or none if it has no such lists of one length, or a text that is no token's.
std::vector<ShownToken> tokens_of(const Json& record) {
  const auto texts = record.find("token_texts"), advantages = record.find("token_advantages"),
             logprobs = record.find("token_log_probs");
  if (texts == record.end() || advantages == record.end() || logprobs == record.end() || !texts->is_array() ||
      !advantages->is_array() || !logprobs->is_array() || advantages->size() != texts->size() ||
      logprobs->size() != texts->size())
    return {};
  std::vector<ShownToken> tokens;
  tokens.reserve(texts->size());
  for (size_t t = 0; t < texts->size(); ++t) {
    if (!(*texts)[t].is_string() || (*texts)[t].get_ref<const std::string&>().size() > kMaxTokenBytes) return {};
    tokens.push_back({.text = (*texts)[t].get<std::string>(),
                      .advantage = metric_value((*advantages)[t]),
                      .logprob = metric_value((*logprobs)[t])});
  }
  return tokens;
}

// Gives the shown pieces their tokens, up to the number that a sample may show. `begins` are the pieces' first tokens.
void give_tokens(const std::vector<ShownToken>& tokens, const std::vector<size_t>& begins,
                 std::vector<ShownPiece>& pieces) {
  size_t num_shown = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto length = static_cast<size_t>(std::max<int64_t>(0, pieces[i].length));
    num_shown += length;
    if (num_shown > kBeginTokens + kEndTokens || begins[i] + length > tokens.size()) return;
    const auto begin = tokens.begin() + static_cast<ptrdiff_t>(begins[i]);
    pieces[i].tokens.assign(begin, begin + static_cast<ptrdiff_t>(length));
  }
}

// Returns the first pieces and the last, which show the first question and the end. Together they share the length that
// a text of a sample may have.
std::vector<ShownPiece> shown_pieces(const Json& pieces, const std::vector<ShownToken>& tokens) {
  std::vector<size_t> places;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (i < kMaxPieces / 2 || i + kMaxPieces / 2 >= pieces.size()) places.push_back(i);
  }
  size_t bytes = 0;
  for (const size_t i : places) bytes += pieces[i].is_object() ? whole_text_at(pieces[i], "text").size() : 0;
  const bool is_long = bytes > kTextBeginBytes + kTextEndBytes;
  std::vector<size_t> all_begins = {0};
  for (const Json& piece : pieces)
    all_begins.push_back(all_begins.back() + (piece.is_object()
                                                  ? static_cast<size_t>(std::max<int64_t>(0, count_at(piece, "length")))
                                                  : 0));
  std::vector<ShownPiece> shown;
  std::vector<size_t> begins;
  for (const size_t i : places) {
    if (!pieces[i].is_object()) continue;
    begins.push_back(all_begins[i]);
    const std::string text = whole_text_at(pieces[i], "text");
    shown.push_back(
        {.from = text_at(pieces[i], "from"),
         .text = is_long ? shortened(text, kTextBeginBytes / places.size(), kTextEndBytes / places.size()) : text,
         .length = count_at(pieces[i], "length"),
         .trained_length = count_at(pieces[i], "trained_length")});
  }
  give_tokens(tokens, begins, shown);
  return shown;
}

ShownSample shown_sample(const Json& record) {
  ShownSample sample;
  sample.prompt = text_at(record, "prompt");
  sample.response = text_at(record, "response");
  sample.label = text_at(record, "label");
  sample.status = text_at(record, "status");
  sample.failure = text_at(record, "failure");
  sample.reward = optional_at(record, "reward");
  sample.advantage = optional_at(record, "advantage");
  sample.mean_logprob = optional_at(record, "mean_logprob");
  sample.group_id = count_at(record, "group_id");
  sample.response_length = count_at(record, "response_length");
  sample.num_turns = count_at(record, "turns");
  sample.is_given = record.contains("off_policy");
  std::vector<ShownToken> tokens = tokens_of(record);
  if (const auto pieces = record.find("pieces"); pieces != record.end() && pieces->is_array()) {
    sample.pieces = shown_pieces(*pieces, tokens);
    sample.num_pieces = pieces->size();
  }
  if (!sample.pieces.empty()) return sample;
  sample.num_tokens = tokens.size();
  sample.num_begin_tokens = std::min(tokens.size(), kBeginTokens);
  if (tokens.size() > kBeginTokens + kEndTokens)
    tokens.erase(tokens.begin() + kBeginTokens, tokens.end() - static_cast<ptrdiff_t>(kEndTokens));
  sample.tokens = std::move(tokens);
  return sample;
}

// Returns about how many bytes of HTML a text takes once it is escaped.
size_t html_bytes(std::string_view text) {
  size_t bytes = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    bytes += c == '&' || c == '<' || c == '>' || c == '"' || c == '\'' ? 6 : byte < 0x20 && c != '\n' ? 6 : 1;
  }
  return bytes;
}

size_t html_bytes(const std::vector<ShownToken>& tokens) {
  constexpr size_t kMarkupBytes = 44;
  size_t bytes = 0;
  for (const ShownToken& token : tokens) bytes += html_bytes(token.text) + kMarkupBytes;
  return bytes;
}

// `prompt_before` is that of the sample before it, which is not repeated.
size_t html_bytes(const ShownSample& sample, const std::string& prompt_before) {
  constexpr size_t kMarkupBytes = 500, kPieceMarkupBytes = 120;
  size_t bytes = kMarkupBytes + html_bytes(sample.label) + html_bytes(sample.failure);
  if (sample.prompt != prompt_before) bytes += html_bytes(sample.prompt);
  if (sample.pieces.empty()) bytes += sample.tokens.empty() ? html_bytes(sample.response) : html_bytes(sample.tokens);
  for (const ShownPiece& piece : sample.pieces)
    bytes += kPieceMarkupBytes + (piece.tokens.empty() ? html_bytes(piece.text) : html_bytes(piece.tokens));
  return bytes;
}

double largest_advantage(const Json& record) {
  double largest = std::abs(optional_at(record, "advantage").value_or(0.0));
  if (const auto advantages = record.find("token_advantages"); advantages != record.end() && advantages->is_array()) {
    for (const Json& value : *advantages) largest = std::max(largest, std::abs(metric_value(value).value_or(0.0)));
  }
  return std::isfinite(largest) ? largest : 0.0;
}

// Chooses the samples with the highest and the lowest reward, the first whose grading failed, the first and the last
// sample, and others evenly spread between, so that `count` are chosen. Returns each with the reasons.
std::map<size_t, std::vector<std::string>> choose(const std::vector<std::optional<double>>& rewards,
                                                  std::optional<size_t> first_failed, size_t count) {
  std::map<size_t, std::vector<std::string>> chosen;
  std::optional<size_t> highest, lowest;
  for (size_t i = 0; i < rewards.size(); ++i) {
    if (!rewards[i] || std::isnan(*rewards[i])) continue;
    if (!highest || *rewards[i] > *rewards[*highest]) highest = i;
    if (!lowest || *rewards[i] < *rewards[*lowest]) lowest = i;
  }
  if (highest && *rewards[*highest] > *rewards[*lowest]) {
    chosen[*highest].emplace_back("highest reward");
    chosen[*lowest].emplace_back("lowest reward");
  }
  if (first_failed) chosen[*first_failed].emplace_back("grading failed");
  for (const size_t i : evenly_spread(rewards.size(), count >= rewards.size() ? count : count - chosen.size()))
    chosen[i];
  return chosen;
}

// At least kSamplesPerFile samples are shown, and as many as have room in `max_bytes` of HTML. Takes about what they
// need from `left_bytes`.
SampleSet read_samples(const std::string& folder, const std::string& file, size_t max_bytes, size_t& left_bytes,
                       RunFiles& run) {
  SampleSet set;
  set.file = file;
  const std::string path = folder + "/" + file;
  std::vector<std::optional<double>> rewards;
  std::vector<int64_t> lines;
  std::optional<size_t> first_failed;
  size_t all_bytes = 0;
  BadLines bad;
  {
    std::string prompt_before;
    LineReader reader(path, 0, kMaxSampleFileBytes);
    std::string line;
    while (reader.next(line)) {
      const Json record = parsed_line(line);
      if (!record.is_object()) {
        bad.add(reader.number());
        continue;
      }
      if (!first_failed && record.contains("failure")) first_failed = rewards.size();
      rewards.push_back(optional_at(record, "reward"));
      lines.push_back(reader.number());
      const ShownSample shown = shown_sample(record);
      all_bytes += html_bytes(shown, prompt_before);
      prompt_before = shown.prompt;
      set.largest_advantage = std::max(set.largest_advantage, largest_advantage(record));
      set.num_given += shown.is_given ? 1 : 0;
      if (!rewards.back()) continue;
      ++set.num_with_reward;
      set.mean_reward += *rewards.back();
    }
    bad.say("samples/" + file, reader, run.left_out);
    if (base::ReadableFile(path).size() > kMaxSampleFileBytes)
      run.left_out.push_back(fmt::format("samples/{}: its first {} MiB are read.", file, kMaxSampleFileBytes >> 20));
  }
  set.num_samples = static_cast<int64_t>(rewards.size());
  if (set.num_with_reward > 0) set.mean_reward /= static_cast<double>(set.num_with_reward);
  const size_t mean_bytes = std::max<size_t>(1, all_bytes / std::max<size_t>(1, rewards.size()));
  const size_t count = std::max(kSamplesPerFile, all_bytes <= max_bytes ? rewards.size() : max_bytes / mean_bytes);
  left_bytes -= std::min(left_bytes, count >= rewards.size() ? all_bytes : count * mean_bytes);
  const auto chosen = choose(rewards, first_failed, count);
  LineReader reader(path, 0, kMaxSampleFileBytes);
  std::string line;
  auto next = chosen.begin();
  while (next != chosen.end() && reader.next(line)) {
    if (reader.number() != lines[next->first]) continue;
    ShownSample sample = shown_sample(parsed_line(line));
    sample.marks = next->second;
    set.samples.push_back(std::move(sample));
    ++next;
  }
  return set;
}

// Returns "eval_held_out" for "eval_held_out_000010.jsonl"; "" for a name that no run writes.
std::string series_of(const std::string& file) {
  constexpr std::string_view kEnd = ".jsonl";
  if (!file.ends_with(kEnd) || (!file.starts_with("rollout_") && !file.starts_with("eval_"))) return "";
  const size_t last = file.rfind('_');
  const std::string_view digits = std::string_view(file).substr(last + 1, file.size() - kEnd.size() - last - 1);
  const bool are_digits = !digits.empty() && std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; });
  return are_digits ? file.substr(0, last) : "";
}

void read_all_samples(const std::string& folder, size_t num_runs, RunFiles& run) {
  if (!base::directory_exists(folder)) return;
  std::map<std::string, std::vector<std::string>> files;  // by series
  for (const std::string& file : base::list_directory(folder)) {
    const std::string series = series_of(file);
    if (!series.empty() && is_regular(folder + "/" + file)) files[series].push_back(file);
  }
  std::vector<std::string> chosen, evaluations;
  size_t num_rollout_files = 0, num_eval_files = 0;
  // Ten runs have as many samples on their page as two, except for the first and the last rollout of each.
  const auto share_of = [&](size_t most) { return std::max<size_t>(1, 2 * most / std::max<size_t>(2, num_runs)); };
  for (auto& [series, names] : files) {
    // A number with more digits than the zeros fill up to is a later one.
    std::ranges::stable_sort(names, {}, [](const std::string& name) { return name.size(); });
    if (series == "rollout") {
      num_rollout_files = names.size();
      for (const size_t i : evenly_spread(names.size(), std::max<size_t>(2, share_of(kMaxRolloutFiles))))
        chosen.push_back(names[i]);
    } else {
      num_eval_files += names.size();
      if (evaluations.size() < share_of(kMaxEvalSets)) evaluations.push_back(names.back());
    }
  }
  if (num_rollout_files > chosen.size())
    run.left_out.push_back(
        fmt::format("Samples are shown of {} of the {} rollouts in samples/: the first, the last, "
                    "and others evenly spread.",
                    chosen.size(), base::with_commas(static_cast<int64_t>(num_rollout_files))));
  if (num_eval_files > evaluations.size())
    run.left_out.push_back(fmt::format(
        "Samples of evaluations are shown of the last one of {}; samples/ has {} files "
        "of evaluations.",
        evaluations.size() == 1 ? std::string("its data set") : fmt::format("{} data sets", evaluations.size()),
        base::with_commas(static_cast<int64_t>(num_eval_files))));
  chosen.insert(chosen.end(), evaluations.begin(), evaluations.end());
  // A file that needs less than its share leaves the rest to those after it.
  size_t left_bytes = kSamplesBytes / std::max<size_t>(1, num_runs);
  for (size_t i = 0; i < chosen.size(); ++i) {
    SampleSet set = read_samples(folder, chosen[i], left_bytes / (chosen.size() - i), left_bytes, run);
    if (set.num_samples > 0) run.samples.push_back(std::move(set));
  }
  const bool has_more =
      std::ranges::any_of(run.samples, [](const SampleSet& set) { return set.num_samples > std::ssize(set.samples); });
  if (has_more)
    run.left_out.push_back(
        "Of a file of samples/ that is long the page shows the highest and the lowest reward, one sample whose grading "
        "failed, the first, the last, and as many others, evenly spread, as it has room for.");
}

// Drops metrics whose names are too long to read.
void drop_long_names(RunFiles& run) {
  const size_t num_long =
      std::erase_if(run.curves, [](const auto& named) { return named.first.size() > kMaxNameBytes; });
  if (num_long > 0)
    run.left_out.push_back(fmt::format("{} whose name is longer than {} bytes {} left out.",
                                       base::counted(static_cast<int64_t>(num_long), "metric"), kMaxNameBytes,
                                       num_long == 1 ? "is" : "are"));
}

}  // namespace

std::vector<size_t> evenly_spread(size_t total, size_t count) {
  std::vector<size_t> places;
  if (total <= count || count < 2) {
    for (size_t i = 0; i < std::min(total, count); ++i) places.push_back(i);
    return places;
  }
  for (size_t i = 0; i < count; ++i) places.push_back(i * (total - 1) / (count - 1));
  return places;
}

RunFiles read_run(const std::string& path, size_t num_runs) {
  RunFiles run;
  run.path = base::without_trailing_slashes(path);
  TANDEM_USER_CHECK(base::directory_exists(run.path),
                    fmt::format("{}: no such directory; name the --save directory of a run", path));
  TANDEM_USER_CHECK(base::file_exists(run.path + "/config.toml") || base::file_exists(run.path + "/metrics.jsonl"),
                    fmt::format("{}: holds no run (no config.toml and no metrics.jsonl); name the --save directory of "
                                "a run",
                                path));
  read_config(run.path + "/config.toml", run);
  // A supervised run has no such option; without its options, its records decide.
  run.has_rollouts = run.config.empty() || run.config.contains("n-samples-per-prompt");
  read_metrics(run.path + "/metrics.jsonl", run);
  drop_long_names(run);
  read_memory(run.path + "/memory_timeline.jsonl", run);
  read_all_samples(run.path + "/samples", num_runs, run);
  if (is_regular(run.path + "/log.txt")) {
    run.log_tail = tail_of(run.path + "/log.txt", kLogTailBytes);
    if (base::ReadableFile(run.path + "/log.txt").size() > kLogTailBytes)
      run.left_out.push_back(fmt::format("Of log.txt the last {} KiB are shown.", kLogTailBytes >> 10));
  }
  return run;
}

}  // namespace tandem::report
