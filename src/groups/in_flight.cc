#include "groups/in_flight.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/message_text.h"
#include "base/wire_fields.h"

namespace tandem::groups {

namespace {

// The number changes with whatever the bytes are made of. Two older formats are read too: 2 lacks the groups that a
// filter dropped, and 1 also has samples of one sequence only, from before generate functions.
constexpr uint32_t kInFlightFormat = 0x494E0003, kWithoutDropsFormat = 0x494E0002, kOneSequenceFormat = 0x494E0001;

struct OneSequence : Member {
  static void fields(auto& wire, auto& m) {
    rl::Sample::fields_of_one_sequence(wire, m.sample);
    wire(m.is_paused, m.failure, m.machine_failed, m.metadata, m.attributes);
  }
};
// `Saved` is a member as the bytes have it.
template <typename Saved>
struct SavedGroupOf {
  uint64_t number = 0;
  int64_t record = 0;    // index of its prompt
  int64_t begun_in = 0;  // rollout
  bool is_kept = false;  // it has ended
  std::vector<Saved> members;
  GroupGrades graded;

  static void fields(auto& wire, auto& m) { wire(m.number, m.record, m.begun_in, m.is_kept, m.members, m.graded); }
};
template <typename Saved>
struct SavedWithoutDrops {
  std::vector<SavedGroupOf<Saved>> groups;  // ascending
  std::vector<uint64_t> versions;

  static void fields(auto& wire, auto& m) { wire(m.groups, m.versions); }
};
using SavedGroup = SavedGroupOf<Member>;
struct SavedDrop {
  uint64_t number = 0;
  GroupGrades graded;

  static void fields(auto& wire, auto& m) { wire(m.number, m.graded); }
};
struct SavedInFlight : SavedWithoutDrops<Member> {
  std::vector<SavedDrop> dropped;  // ascending

  static void fields(auto& wire, auto& m) { wire(m.groups, m.versions, m.dropped); }
};

SavedInFlight unpacked_or_throw(std::string_view bytes) {
  const uint32_t format = base::format_of(bytes);
  if (format == kWithoutDropsFormat) return {base::unpacked<SavedWithoutDrops<Member>>(bytes, format), {}};
  if (format != kOneSequenceFormat) return base::unpacked<SavedInFlight>(bytes, kInFlightFormat);
  auto old = base::unpacked<SavedWithoutDrops<OneSequence>>(bytes, format);
  SavedInFlight saved;
  saved.versions = std::move(old.versions);
  for (SavedGroupOf<OneSequence>& group : old.groups) {
    saved.groups.push_back(
        {.number = group.number,
         .record = group.record,
         .begun_in = group.begun_in,
         .is_kept = group.is_kept,
         .members = {std::make_move_iterator(group.members.begin()), std::make_move_iterator(group.members.end())},
         .graded = std::move(group.graded)});
  }
  return saved;
}

bool is_whole(const Member& member, const SavedGroup& group, const InFlightLimits& limits) {
  const rl::Sample& sample = member.sample;
  const size_t size = sample.completion.size();
  const auto is_token = [&](int32_t token) { return token >= 0 && token < limits.vocab; };
  const auto begins_before = [](const rl::VersionSpan& a, const rl::VersionSpan& b) { return a.begin >= b.begin; };
  if (member.is_paused && size == 0) return true;  // nobody has sampled it yet
  // A generate function may make a sample of which nothing was sampled: none of its tokens is trained on.
  const bool has_trained = std::ranges::count(sample.loss_mask, uint8_t{1}) > 0;
  return sample.group_id == group.number && !(group.is_kept && member.is_paused) &&
         sample.rollout_logprobs.size() == size && sample.loss_mask.size() == size &&
         sample.behavior_logprobs.size() == (limits.has_behavior_logprobs ? size : 0) &&
         std::ranges::all_of(sample.completion, is_token) && !(has_trained && sample.versions.empty()) &&
         (sample.versions.empty() ||
          (sample.versions.front().begin == 0 && sample.versions.back().begin < std::ssize(sample.completion))) &&
         std::ranges::adjacent_find(sample.versions, begins_before) == sample.versions.end();
}

// Throws UserError for flags that the groups cannot go on with: other samples a prompt, completions that are shorter
// than theirs, or a choice among fewer tokens, or among more, than those that sampled them had.
void check_flags(const SavedInFlight& saved, const InFlightLimits& limits) {
  constexpr std::string_view kRemedy =
      "give the same values as before, or leave out --partial-rollout and --max-weight-staleness, which drops these "
      "groups";
  for (const SavedGroup& group : saved.groups) {
    TANDEM_USER_CHECK(
        std::ssize(group.members) == limits.n_samples_per_prompt,
        fmt::format("{}: a group in flight has {}, and --n-samples-per-prompt is {}; {}", limits.file,
                    base::counted(std::ssize(group.members), "sample"), limits.n_samples_per_prompt, kRemedy));
    for (const Member& member : group.members) {
      const int64_t length = std::ssize(member.sample.completion), most = limits.max_new_tokens;
      TANDEM_USER_CHECK(member.is_paused ? length < most : length <= most,
                        fmt::format("{}: a completion in flight has {}, and --rollout-max-response-len is {}; {}",
                                    limits.file, base::counted(length, "token"), most, kRemedy));
      const size_t size = member.sample.completion.size(), has = member.sample.behavior_logprobs.size();
      TANDEM_USER_CHECK(
          size == 0 || has == (limits.has_behavior_logprobs ? size : 0) || (has != 0 && has != size),
          fmt::format("{}: the groups in flight were sampled {} --rollout-top-p, --rollout-top-k or "
                      "--rollout-min-p, and the run continues {}; {}",
                      limits.file, has == 0 ? "without" : "with", has == 0 ? "with one" : "without", kRemedy));
    }
  }
}

SavedInFlight unpacked(std::string_view bytes, const std::string& file) {
  try {
    return unpacked_or_throw(bytes);
  } catch (const EnvironmentError& error) {
    throw UserError(fmt::format("{}: the groups in flight cannot be read ({}): take another checkpoint (--ckpt-step)",
                                file, error.what()));
  }
}

SavedInFlight read(std::string_view bytes, const InFlightLimits& limits) {
  SavedInFlight saved = unpacked(bytes, limits.file);
  check_flags(saved, limits);
  const auto is_in_order = [](const SavedGroup& a, const SavedGroup& b) { return a.number >= b.number; };
  bool is_good = std::ranges::adjacent_find(saved.groups, is_in_order) == saved.groups.end();
  for (const SavedGroup& group : saved.groups) {
    const bool has_ended = std::ranges::none_of(group.members, &Member::is_paused);
    is_good = is_good && group.number < static_cast<uint64_t>(limits.num_begun) && group.record >= 0 &&
              group.record < limits.num_prompts && group.begun_in >= 0 && group.begun_in <= limits.rollout &&
              (has_ended || !group.is_kept) &&
              group.graded.grades.size() == (group.is_kept ? group.members.size() : 0) &&
              std::ranges::all_of(group.members, [&](const Member& m) { return is_whole(m, group, limits); });
  }
  uint64_t next = 0;  // number that the next group may have
  for (const SavedDrop& drop : saved.dropped) {
    is_good = is_good && drop.number >= next && drop.number < static_cast<uint64_t>(limits.num_begun) &&
              !drop.graded.verdict.is_kept && drop.graded.grades.empty() &&
              std::ranges::find(saved.groups, drop.number, &SavedGroup::number) == saved.groups.end();
    next = drop.number + 1;
  }
  TANDEM_USER_CHECK(is_good, fmt::format("{}: the groups in flight do not fit this run: it was changed by hand, or is "
                                         "of other data or flags; take another checkpoint (--ckpt-step)",
                                         limits.file));
  return saved;
}

}  // namespace

void InFlight::weights_are(uint64_t version) {
  if (versions.empty() || versions.back() != version) versions.push_back(version);
}

int64_t InFlight::age(uint64_t version) const {
  const auto sampled_by = std::ranges::lower_bound(versions, version);
  return std::max<int64_t>(versions.end() - sampled_by, 1) - 1;
}

void InFlight::forget_old_versions() {
  if (versions.empty()) return;
  uint64_t oldest = versions.back();
  for (const size_t number : schedule.in_flight()) {
    for (const Member& member : pool.group(number).members) {
      if (!member.sample.versions.empty()) oldest = std::min(oldest, member.sample.versions.front().version);
    }
  }
  std::erase_if(versions, [&](uint64_t version) { return version < oldest; });
}

std::string to_bytes(const InFlight& in_flight, const IndexOfLine& index_of) {
  SavedInFlight saved;
  for (const size_t number : in_flight.schedule.in_flight()) {
    const Group& group = in_flight.pool.group(number);
    saved.groups.push_back({.number = number,
                            .record = index_of(*group.line),
                            .begun_in = in_flight.schedule.begun_in(number),
                            .is_kept = in_flight.schedule.is_kept(number),
                            .members = group.members,
                            .graded = group.graded});
  }
  saved.versions = in_flight.versions;
  for (const auto& [number, graded] : in_flight.dropped) saved.dropped.push_back({.number = number, .graded = graded});
  return base::packed(saved, kInFlightFormat);
}

void put_back(std::string_view bytes, const InFlightLimits& limits, const LineOfIndex& line_of, InFlight& in_flight) {
  SavedInFlight saved = read(bytes, limits);
  for (SavedGroup& group : saved.groups) {
    const session::PromptLine& line = line_of(group.record);
    for (Member& member : group.members) member.sample.prompt = line.prompt;
    in_flight.schedule.put_back(group.number, group.begun_in, group.is_kept);
    in_flight.pool.put_back(group.number,
                            {.line = &line, .members = std::move(group.members), .graded = std::move(group.graded)});
  }
  in_flight.versions = std::move(saved.versions);
  for (SavedDrop& drop : saved.dropped) in_flight.dropped[drop.number] = std::move(drop.graded);
  const InFlightSchedule::Settings& settings = in_flight.schedule.settings();
  const int64_t needed = in_flight.schedule.staleness_needed();
  TANDEM_USER_CHECK(
      needed <= settings.max_staleness.value_or(needed),
      fmt::format(
          "{}: {} in flight cannot be trained on in time, {} a rollout: --max-weight-staleness {} is needed, and "
          "{} given; give that, or --rollout-batch-size as it was",
          limits.file, base::counted(in_flight.schedule.num_in_flight(), "group"), settings.wanted, needed,
          *settings.max_staleness));
}

std::map<size_t, int64_t> records_in(std::string_view bytes, const InFlightLimits& limits) {
  std::map<size_t, int64_t> records;
  for (const SavedGroup& group : read(bytes, limits).groups) records[group.number] = group.record;
  return records;
}

int64_t num_groups_in(std::string_view bytes, const std::string& file) {
  return std::ssize(unpacked(bytes, file).groups);
}

}  // namespace tandem::groups
