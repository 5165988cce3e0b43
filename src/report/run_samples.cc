#include "report/run_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/files.h"
#include "base/json.h"
#include "base/message_text.h"
#include "report/line_reader.h"

namespace tandem::report {

namespace {

using base::Json;

constexpr size_t kMaxRolloutFiles = 12, kMaxEvalSets = 4, kSamplesPerFile = 8;
// Beyond these, samples are shown while all of the page have room in so many bytes of HTML.
constexpr size_t kSamplesBytes = size_t{10} << 20;
constexpr size_t kMaxPieces = 40;  // limit for one sample
constexpr size_t kMaxTokenBytes = 512;
constexpr int64_t kMaxSampleFileBytes = int64_t{256} << 20;

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
SampleSet read_sample_file(const std::string& folder, const std::string& file, size_t max_bytes, size_t& left_bytes,
                           std::vector<std::string>& left_out) {
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
    bad.say("samples/" + file, reader, left_out);
    if (base::ReadableFile(path).size() > kMaxSampleFileBytes)
      left_out.push_back(fmt::format("samples/{}: its first {} MiB are read.", file, kMaxSampleFileBytes >> 20));
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

std::vector<SampleSet> read_samples(const std::string& folder, size_t num_runs, std::vector<std::string>& left_out) {
  if (!base::directory_exists(folder)) return {};
  std::map<std::string, std::vector<std::string>> files;  // by series
  std::error_code unknown;
  for (const std::string& file : base::list_directory(folder)) {
    const std::string series = series_of(file);
    if (!series.empty() && std::filesystem::is_regular_file(folder + "/" + file, unknown))
      files[series].push_back(file);
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
    left_out.push_back(
        fmt::format("Samples are shown of {} of the {} rollouts in samples/: the first, the last, "
                    "and others evenly spread.",
                    chosen.size(), base::with_commas(static_cast<int64_t>(num_rollout_files))));
  if (num_eval_files > evaluations.size())
    left_out.push_back(fmt::format(
        "Samples of evaluations are shown of the last one of {}; samples/ has {} files "
        "of evaluations.",
        evaluations.size() == 1 ? std::string("its data set") : fmt::format("{} data sets", evaluations.size()),
        base::with_commas(static_cast<int64_t>(num_eval_files))));
  chosen.insert(chosen.end(), evaluations.begin(), evaluations.end());
  std::vector<SampleSet> sets;
  // A file that needs less than its share leaves the rest to those after it.
  size_t left_bytes = kSamplesBytes / std::max<size_t>(1, num_runs);
  for (size_t i = 0; i < chosen.size(); ++i) {
    SampleSet set = read_sample_file(folder, chosen[i], left_bytes / (chosen.size() - i), left_bytes, left_out);
    if (set.num_samples > 0) sets.push_back(std::move(set));
  }
  const bool has_more =
      std::ranges::any_of(sets, [](const SampleSet& set) { return set.num_samples > std::ssize(set.samples); });
  if (has_more)
    left_out.push_back(
        "Of a file of samples/ that is long the page shows the highest and the lowest reward, one sample whose grading "
        "failed, the first, the last, and as many others, evenly spread, as it has room for.");
  return sets;
}

}  // namespace tandem::report
