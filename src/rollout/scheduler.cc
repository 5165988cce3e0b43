#include "rollout/scheduler.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.h"
#include "device/block.h"

namespace tandem::rollout {

using device::kBlockTokens;

Scheduler::Scheduler(const SchedulerConfig& config) : config_(config), blocks_(config.num_blocks, config.kinds) {
  TANDEM_CHECK(config.max_batch_tokens > 0 && config.max_running > 0, config.max_batch_tokens, config.max_running);
  TANDEM_CHECK(config.lookahead == 0 || config.lookahead == 1, config.lookahead);
  // Slots are 32-bit numbers.
  TANDEM_CHECK(config.num_blocks <= std::numeric_limits<int32_t>::max() / blocks_.span(), config.num_blocks);
}

bool Scheduler::fits(int64_t max_tokens) const {
  return blocks_.most_held_blocks(max_tokens - 1, config_.max_batch_tokens) <= pool().num_blocks();
}

std::vector<SequenceId> Scheduler::add_group(rl::SharedPrompt prompt, std::vector<NewSequence> sequences) {
  TANDEM_CHECK(!prompt->tokens.empty() && !sequences.empty());
  for (const NewSequence& added : sequences) {
    const int64_t num_tokens = std::ssize(prompt->tokens) + std::ssize(added.generated);
    TANDEM_CHECK(num_tokens < added.max_tokens && fits(added.max_tokens), num_tokens, added.max_tokens);
  }
  auto group = std::make_shared<PromptGroup>();
  group->prompt = std::move(prompt);
  group->num_unfinished = std::ssize(sequences);
  for (NewSequence& added : sequences) {
    SequenceId id = static_cast<SequenceId>(sequences_.size());
    if (unused_ids_.empty()) {
      sequences_.emplace_back();
    } else {
      id = unused_ids_.back();
      unused_ids_.pop_back();
    }
    Sequence& sequence = at(id);
    sequence.group = group;
    sequence.generated = std::move(added.generated);
    sequence.num_begun = std::ssize(sequence.generated);
    sequence.max_tokens = added.max_tokens;
    group->members.push_back(id);
  }
  std::vector<SequenceId> in_order = group->members;
  std::ranges::stable_partition(in_order, [this](SequenceId id) { return at(id).num_begun == 0; });
  for (const SequenceId id : in_order) {
    Sequence& sequence = at(id);
    sequence.arrival = next_arrival_++;
    const bool waits = id == in_order.front() || sequence.num_begun > 0;
    sequence.state = waits ? State::kWaiting : State::kUnstarted;
    if (waits) waiting_.push_back(id);
  }
  return group->members;
}

SequenceId Scheduler::add_owned(rl::SharedPrompt prompt, const PrefixOwner& owner, NewSequence sequence) {
  std::vector<NewSequence> sequences;
  sequences.push_back(std::move(sequence));
  const SequenceId id = add_group(std::move(prompt), std::move(sequences)).front();
  at(id).group->owner = owner;
  return id;
}

const ScheduledBatch& Scheduler::plan(const Drafts& drafts) {
  TANDEM_CHECK(num_unanswered_ == 0 || (drafts.empty() && !has_drafts_), num_unanswered_,
               "draws without a token before or after a plan with drafts");
  begin_plan();
  // Forwards run in the order of their plans: the last one has read these blocks before anybody writes into them.
  for (const SequenceId id : running_) blocks_.drop_unseen(at(id).blocks, at(id).computed);
  plan_decodes(drafts);
  plan_prefills();
  left_waiting_ = !waiting_.empty();
  fill_block_tables();
  // A full sequence holds its blocks until its last token is there; then waiting sequences can have them.
  TANDEM_CHECK(!plan_.empty() || idle() || num_pending_ > 0, "waiting sequences, and nothing can run");
  stats_.peak_blocks = std::max(stats_.peak_blocks, pool().num_used());
  return plan_;
}

bool Scheduler::has_room() const {
  if (waiting_.empty()) return true;
  if (left_waiting_) return false;
  int64_t tokens = 0;
  for (const SequenceId id : waiting_) tokens += sequences_[static_cast<size_t>(id)].num_tokens();
  return tokens < config_.max_batch_tokens;
}

void Scheduler::begin_plan() {
  TANDEM_CHECK_EQ(num_pending_, 0, "draws of the plan before the last one without a token");
  TANDEM_CHECK(num_unanswered_ == 0 || config_.lookahead > 0, num_unanswered_,
               "draws of the last plan without a token");
  num_pending_ = std::exchange(num_unanswered_, 0);
  has_drafts_ = false;
  for (size_t i = 0; num_pending_ > 0 && i < plan_.sample_slots.size(); ++i) {
    Sequence& sequence = at(plan_.sample_slots[i].sequence);
    if (!std::exchange(sequence.draws, false)) continue;
    sequence.num_pending = 1;
    sequence.pending_draw = static_cast<int32_t>(i);
  }
  plan_.copies.clear();
  plan_.token_ids.clear();
  plan_.positions.clear();
  plan_.sequence_of_row.clear();
  plan_.sequences.clear();
  plan_.places.resize(config_.kinds.size());
  for (ScheduledBatch::KvPlaces& places : plan_.places) places.slot_mapping.clear();
  plan_.logits_rows.clear();
  plan_.sample_slots.clear();
}

void Scheduler::plan_decodes(const Drafts& drafts) {
  const int64_t max_decodes = std::min(config_.max_running, config_.max_batch_tokens);
  int64_t num_decodes = 0;
  // Victims come from the back, so the sequences planned so far stay; running_ may shrink under the loop.
  for (size_t i = 0; i < running_.size() && num_decodes < max_decodes; ++i) {
    const SequenceId id = running_[i];
    Sequence& sequence = at(id);
    if (sequence.is_full()) continue;
    while (sequence.state == State::kRunning && !prepare_decode_slot(sequence)) {
      if (drop_kept_blocks(std::nullopt)) continue;
      preempt(last_holder());
      ++stats_.preemptions;
    }
    if (sequence.state != State::kRunning) break;  // it was the last one itself
    if (const auto guesses = drafts.find(id); guesses != drafts.end()) {
      take_drafts(sequence, guesses->second, num_running() - static_cast<int64_t>(i) - 1);
    }
    add_rows(id, sequence.computed + 1);
    ++num_decodes;
  }
  stats_.peak_running = std::max(stats_.peak_running, num_decodes);
}

void Scheduler::take_drafts(Sequence& sequence, const std::vector<int32_t>& guesses, int64_t num_after) {
  // All of them may be right, and one token more is drawn.
  const int64_t room = sequence.max_tokens - sequence.num_tokens() - 1;
  const int64_t rows = config_.max_batch_tokens - plan_.num_rows() - 1 - num_after;
  const int64_t wanted = std::min({static_cast<int64_t>(guesses.size()), room, rows});
  if (wanted <= 0) return;
  // One free block stays for each running sequence: a draft makes nobody give up blocks.
  const int64_t begin = sequence.computed + 1;
  const auto spare_block = [this] { return pool().num_free() > num_running() ? blocks_.allocate() : std::nullopt; };
  const int64_t count = blocks_.grow(sequence.blocks, begin + wanted, spare_block) - begin;
  sequence.drafts.assign(guesses.begin(), guesses.begin() + count);
  has_drafts_ = has_drafts_ || count > 0;
}

void Scheduler::drop_drafts(Sequence& sequence) {
  sequence.num_dropped_draws += sequence.num_drafts();
  sequence.drafts.clear();
  blocks_.cut(sequence.blocks, sequence.computed);
}

void Scheduler::plan_prefills() {
  while (plan_.num_rows() < config_.max_batch_tokens && !waiting_.empty()) {
    const SequenceId id = waiting_.front();
    Sequence& sequence = at(id);
    if (sequence.is_full()) return;  // it ends as soon as its last token is there
    if (sequence.blocks.empty()) {
      if (!make_room(sequence)) return;
      if (sequence.group->owner) {
        adopt_kept_blocks(sequence);
      } else {
        adopt_prompt_blocks(sequence);
      }
    }
    blocks_.drop_unseen(sequence.blocks, sequence.computed);
    const int64_t budget =
        std::min(config_.max_batch_tokens - plan_.num_rows(), blocks_.most_part_tokens(config_.max_batch_tokens));
    const int64_t end = grow(sequence, std::min(sequence.num_tokens(), sequence.computed + budget));
    if (end > sequence.computed) add_rows(id, end);
    if (sequence.computed < sequence.num_tokens())
      return;  // it goes on with the next plan, as far as rows and blocks allow
    waiting_.pop_front();
    sequence.state = State::kRunning;
    running_.push_back(id);
    if (sequence.num_generated() == 0) fork(id);
  }
}

bool Scheduler::make_room(const Sequence& sequence) {
  if (running_.empty()) return true;  // add_group() has checked that it fits alone
  if (num_running() >= config_.max_running) return false;
  while (!has_room_for(sequence)) {
    if (!drop_kept_blocks(sequence.group->owner)) return false;
  }
  return true;
}

bool Scheduler::has_room_for(const Sequence& sequence) const {
  const int64_t tokens = sequence.num_tokens();
  int64_t needed = blocks_.most_held_blocks(tokens, config_.max_batch_tokens);
  needed -= std::min(needed, own_kept_blocks(sequence));
  if (sequence.num_generated() == 0) {
    for (const SequenceId id : sequence.group->members) {  // each that starts here copies the partial block
      if (at(id).num_generated() == 0) needed += blocks_.growth_blocks(tokens, at(id).max_tokens);
    }
  } else {
    needed += blocks_.growth_blocks(tokens + kBlockTokens - 1, sequence.max_tokens);
    if (running_sibling(sequence)) {
      const int64_t shared = full_prompt_tokens(sequence);
      needed -= std::min(needed, blocks_.blocks_for(shared) - blocks_.unseen_blocks(shared));
    }
  }
  for (const SequenceId id : running_) {
    if (needed > pool().num_free()) return false;
    needed += blocks_.growth_blocks(blocks_.capacity(at(id).blocks), at(id).max_tokens);
  }
  return needed <= pool().num_free();
}

std::optional<SequenceId> Scheduler::running_sibling(const Sequence& sequence) const {
  for (const SequenceId id : sequence.group->members) {
    if (at(id).state != State::kRunning) continue;
    if (blocks_.holds_window(at(id).blocks, full_prompt_tokens(sequence))) return id;
  }
  return std::nullopt;
}

int64_t Scheduler::full_prompt_tokens(const Sequence& sequence) const {
  const auto tokens = static_cast<int64_t>(sequence.group->prompt->tokens.size());
  return tokens - tokens % blocks_.span();
}

void Scheduler::adopt_prompt_blocks(Sequence& sequence) {
  // If nothing is generated yet, the first sample computes the prompt and the others start from it.
  const std::optional<SequenceId> sibling = running_sibling(sequence);
  if (!sibling) return;
  // Blocks that a sibling writes in this very forward are usable: each layer stores all keys before it reads any.
  share_blocks(sequence, at(*sibling).blocks, full_prompt_tokens(sequence));
  stats_.shared_prompt_tokens += sequence.computed;
}

int64_t Scheduler::usable_tokens(const Sequence& sequence, const std::vector<int32_t>& prefix) {
  const std::vector<int32_t>& prompt = sequence.group->prompt->tokens;
  const size_t most = std::min(prefix.size(), prompt.size() - 1);
  const auto end = prefix.begin() + static_cast<std::ptrdiff_t>(most);
  return std::mismatch(prefix.begin(), end, prompt.begin()).first - prefix.begin();
}

int64_t Scheduler::own_kept_blocks(const Sequence& sequence) const {
  if (!sequence.group->owner) return 0;
  const auto kept = kept_.find(sequence.group->owner->sample_id);
  if (kept == kept_.end() || kept->second.blocks.empty()) return 0;
  const int64_t usable = usable_tokens(sequence, kept->second.tokens);
  if (!blocks_.holds_window(kept->second.blocks, usable)) return 0;
  return blocks_.blocks_for(usable) - blocks_.unseen_blocks(usable);
}

void Scheduler::adopt_kept_blocks(Sequence& sequence) {
  const PrefixOwner& owner = *sequence.group->owner;
  if (const auto own = kept_.find(owner.sample_id); own != kept_.end()) {
    KeptPrefix& prefix = own->second;
    int64_t usable = usable_tokens(sequence, prefix.tokens);
    sequence.ever_computed = std::max(sequence.ever_computed, usable);
    // A block that others hold as well is full of common tokens; this sequence would write into it.
    if (!prefix.blocks.empty() && blocks_.holds_window(prefix.blocks, usable) &&
        blocks_.shares_slot(prefix.blocks, usable)) {
      usable -= usable % blocks_.span();
    }
    if (!prefix.blocks.empty() && usable > 0 && blocks_.holds_window(prefix.blocks, usable)) {
      sequence.blocks = blocks_.take(prefix.blocks, usable);
      drop_blocks(prefix);
      kept_.erase(own);
      sequence.computed = usable;
      stats_.kept_tokens += usable;
      return;
    }
  }
  // The prompts of others of the group begin alike.
  const BlockLists* donor = nullptr;
  int64_t most_tokens = 0;
  const auto offer = [&](const BlockLists& blocks, int64_t usable) {
    const int64_t tokens = usable - usable % blocks_.span();
    if (blocks.empty() || tokens <= most_tokens || !blocks_.holds_window(blocks, tokens)) return;
    most_tokens = tokens;
    donor = &blocks;
  };
  for (const auto& [sample_id, prefix] : kept_) {
    if (prefix.group_id == owner.group_id) offer(prefix.blocks, usable_tokens(sequence, prefix.tokens));
  }
  for (const SequenceId id : running_) {
    const Sequence& other = at(id);
    if (!other.group->owner || other.group->owner->group_id != owner.group_id) continue;
    offer(other.blocks, usable_tokens(sequence, other.group->prompt->tokens));
  }
  if (donor == nullptr) return;
  share_blocks(sequence, *donor, most_tokens);
  stats_.shared_prompt_tokens += sequence.computed;
}

void Scheduler::share_blocks(Sequence& sequence, const BlockLists& blocks, int64_t tokens) {
  sequence.blocks = blocks_.share(blocks, tokens);
  sequence.computed = tokens;
}

void Scheduler::keep_prefix(const Sequence& sequence) {
  const PrefixOwner& owner = *sequence.group->owner;
  KeptPrefix& prefix = kept_[owner.sample_id];
  drop_blocks(prefix);
  prefix = {.group_id = owner.group_id, .order = num_kept_++, .tokens = {}, .blocks = blocks_.share(sequence.blocks)};
  for (int64_t p = 0; p < sequence.computed; ++p) prefix.tokens.push_back(token_at(sequence, p));
}

void Scheduler::drop_blocks(KeptPrefix& prefix) { blocks_.release(prefix.blocks); }

// If turns take equally long, the prefix that was kept last is needed last.
bool Scheduler::drop_kept_blocks(const std::optional<PrefixOwner>& spared) {
  KeptPrefix* last = nullptr;
  for (auto& [sample_id, prefix] : kept_) {
    if (prefix.blocks.empty() || (spared && spared->sample_id == sample_id)) continue;
    if (last == nullptr || prefix.order > last->order) last = &prefix;
  }
  if (last == nullptr) return false;
  drop_blocks(*last);
  ++stats_.kept_dropped;
  return true;
}

void Scheduler::release_prefix(uint64_t sample_id) {
  const auto found = kept_.find(sample_id);
  if (found == kept_.end()) return;
  drop_blocks(found->second);
  kept_.erase(found);
}

void Scheduler::release_prefixes() {
  while (!kept_.empty()) release_prefix(kept_.begin()->first);
}

std::optional<int32_t> Scheduler::allocate(const Sequence& sequence) {
  std::optional<int32_t> block = blocks_.allocate();
  // The sequence has taken over what it can use of its owner's prefix; the rest goes last.
  while (!block && (drop_kept_blocks(sequence.group->owner) || drop_kept_blocks(std::nullopt))) {
    block = blocks_.allocate();
  }
  return block;
}

bool Scheduler::prepare_decode_slot(Sequence& sequence) {
  const size_t num_copies = plan_.copies.size();
  const bool is_own = blocks_.own_slot(sequence.blocks, sequence.computed, plan_.copies);
  stats_.copies_on_write += static_cast<int64_t>(plan_.copies.size() - num_copies);
  return is_own && grow(sequence, sequence.computed + 1) > sequence.computed;
}

int64_t Scheduler::grow(Sequence& sequence, int64_t end) {
  return blocks_.grow(sequence.blocks, end, [&] { return allocate(sequence); });
}

void Scheduler::add_rows(SequenceId id, int64_t end) {
  Sequence& sequence = at(id);
  const auto prompt_tokens = static_cast<int64_t>(sequence.group->prompt->tokens.size());
  const auto plan_index = static_cast<int32_t>(plan_.sequences.size());
  plan_.sequences.push_back(id);
  for (int64_t p = sequence.computed; p < end + sequence.num_drafts(); ++p) {
    plan_.token_ids.push_back(token_at(sequence, p));
    plan_.positions.push_back(static_cast<int32_t>(p));
    plan_.sequence_of_row.push_back(plan_index);
  }
  for (size_t k = 0; k < config_.kinds.size(); ++k) {
    const int64_t tokens = config_.kinds[k].tokens;
    const std::vector<int32_t>& blocks = sequence.blocks.of_kind[k];
    for (int64_t p = sequence.computed; p < end + sequence.num_drafts(); ++p) {
      const int64_t slot = blocks[static_cast<size_t>(p / tokens)] * tokens + p % tokens;
      plan_.places[k].slot_mapping.push_back(static_cast<int32_t>(slot));
    }
  }
  const int64_t first_new = std::clamp(sequence.ever_computed, sequence.computed, end);
  stats_.recomputed_tokens += first_new - sequence.computed;
  stats_.prefill_tokens += std::max<int64_t>(0, std::min(end, prompt_tokens) - first_new);
  stats_.resumed_tokens +=
      std::max<int64_t>(0, std::min(end, prompt_tokens + sequence.num_begun) - std::max(first_new, prompt_tokens));
  sequence.computed = end;
  sequence.ever_computed = std::max(sequence.ever_computed, end);
  if (end < sequence.num_tokens()) return;
  for (int64_t i = 0; i <= sequence.num_drafts(); ++i) {
    add_draw(id, static_cast<int32_t>(plan_.logits_rows.size()), i);
    plan_.logits_rows.push_back(static_cast<int32_t>(plan_.num_rows() - 1 - sequence.num_drafts() + i));
  }
}

int32_t Scheduler::token_at(const Sequence& sequence, int64_t position) const {
  const std::vector<int32_t>& prompt = sequence.group->prompt->tokens;
  const auto offset = static_cast<size_t>(position);
  if (offset < prompt.size()) return prompt[offset];
  if (offset < prompt.size() + sequence.generated.size()) return sequence.generated[offset - prompt.size()];
  if (position >= sequence.num_tokens()) return sequence.drafts[static_cast<size_t>(position - sequence.num_tokens())];
  return -1 - sequence.pending_draw;
}

void Scheduler::add_draw(SequenceId id, int32_t logits_index, int64_t num_drafts) {
  Sequence& sequence = at(id);
  sequence.draws = true;
  ++sequence.group->num_unanswered;
  ++num_unanswered_;
  plan_.sample_slots.push_back({.sequence = id,
                                .logits_index = logits_index,
                                .position = static_cast<int32_t>(sequence.num_generated() + num_drafts),
                                .is_after_draft = num_drafts > 0});
}

void Scheduler::fork(SequenceId first) {
  const ScheduledBatch::SampleSlot first_draw = plan_.sample_slots.back();
  TANDEM_CHECK_EQ(first_draw.sequence, first);
  for (const SequenceId id : at(first).group->members) {
    Sequence& sequence = at(id);
    if (sequence.state != State::kUnstarted) continue;  // `first` itself, or a begun one
    sequence.state = State::kRunning;
    sequence.blocks = blocks_.share(at(first).blocks);
    sequence.computed = sequence.ever_computed = at(first).computed;
    stats_.shared_prompt_tokens += sequence.computed;
    running_.push_back(id);
    add_draw(id, first_draw.logits_index);
  }
}

void Scheduler::fill_block_tables() {
  int64_t most_tokens = 1;
  for (const SequenceId id : plan_.sequences) {
    most_tokens = std::max(most_tokens, at(id).computed + at(id).num_drafts());
  }
  plan_.max_blocks = (most_tokens + kBlockTokens - 1) / kBlockTokens;
  for (size_t k = 0; k < config_.kinds.size(); ++k) {
    const auto tiles = static_cast<int32_t>(config_.kinds[k].tokens / kBlockTokens);
    std::vector<int32_t>& table = plan_.places[k].block_table;
    table.assign(plan_.sequences.size() * static_cast<size_t>(plan_.max_blocks), 0);
    auto row = table.begin();
    for (const SequenceId id : plan_.sequences) {
      const auto end = row + plan_.max_blocks;
      auto entry = row;
      for (const int32_t block : at(id).blocks.of_kind[k]) {
        for (int32_t tile = 0; tile < tiles && entry != end; ++tile, ++entry) {
          if (block != kNoBlock) *entry = block * tiles + tile;
        }
      }
      row = end;
    }
  }
}

SequenceId Scheduler::last_holder() const {
  if (!waiting_.empty() && !at(waiting_.front()).blocks.empty()) return waiting_.front();
  TANDEM_CHECK(!running_.empty(), "no sequence holds blocks");
  return running_.back();
}

void Scheduler::preempt(SequenceId id) {
  Sequence& sequence = at(id);
  release_blocks(sequence);
  if (sequence.state == State::kWaiting) return;  // a prefill that has begun keeps its place
  TANDEM_CHECK_EQ(running_.back(), id);
  running_.pop_back();
  sequence.state = State::kWaiting;
  waiting_.push_front(id);
}

void Scheduler::release_blocks(Sequence& sequence) {
  blocks_.release(sequence.blocks);
  sequence.computed = 0;
}

bool Scheduler::append(SequenceId id, int32_t token) {
  Sequence& sequence = at(id);
  const bool is_dropped = sequence.num_dropped_draws > 0;
  TANDEM_CHECK(is_dropped || sequence.num_pending > 0 || sequence.draws, "sequence", id, "has no draw");
  if (is_dropped) {
    --sequence.num_dropped_draws;
    --num_unanswered_;
  } else if (std::exchange(sequence.num_pending, 0) > 0) {
    --num_pending_;
  } else {
    sequence.draws = false;
    --num_unanswered_;
  }
  --sequence.group->num_unanswered;
  if (sequence.state == State::kFinished) {
    free_ids(sequence.group);
    return false;
  }
  if (is_dropped) return false;
  TANDEM_CHECK(!sequence.is_full(), "sequence", id, "is full");
  sequence.generated.push_back(token);
  if (sequence.drafts.empty()) return true;
  if (token == sequence.drafts.front()) {  // its keys and values are in the cache
    sequence.drafts.erase(sequence.drafts.begin());
    sequence.ever_computed = std::max(sequence.ever_computed, ++sequence.computed);
    sequence.draws = true;
  } else {
    drop_drafts(sequence);
  }
  return true;
}

void Scheduler::finish(SequenceId id) {
  Sequence& sequence = at(id);
  const bool was_preempted = sequence.state == State::kWaiting && !sequence.generated.empty();
  TANDEM_CHECK(sequence.state == State::kRunning || was_preempted, "sequence", id, "is not running");
  leave_queue(id);
  drop_drafts(sequence);
  if (sequence.group->owner) keep_prefix(sequence);
  retire(id);
}

void Scheduler::finish_group(SequenceId any_member) {
  const std::shared_ptr<PromptGroup> group = at(any_member).group;
  TANDEM_CHECK(group != nullptr, "sequence", any_member, "is not in use");
  TANDEM_CHECK_EQ(group->num_unanswered, 0);
  for (const SequenceId id : group->members) {
    if (at(id).state == State::kFinished) continue;
    leave_queue(id);
    retire(id);
    if (group->num_unfinished == 0) return;  // the ids are free now
  }
}

void Scheduler::leave_queue(SequenceId id) {
  const State state = at(id).state;
  if (state == State::kRunning) running_.erase(std::find(running_.begin(), running_.end(), id));
  if (state == State::kWaiting) waiting_.erase(std::find(waiting_.begin(), waiting_.end(), id));
}

void Scheduler::retire(SequenceId id) {
  release_blocks(at(id));
  at(id).state = State::kFinished;
  --at(id).group->num_unfinished;
  free_ids(at(id).group);
}

void Scheduler::free_ids(const std::shared_ptr<PromptGroup>& group) {
  if (group->num_unfinished > 0 || group->num_unanswered > 0) return;
  const std::shared_ptr<PromptGroup> kept = group;  // keeps the group alive while its members let it go
  for (const SequenceId member : kept->members) {
    at(member) = Sequence();
    unused_ids_.push_back(member);
  }
}

void Scheduler::reset_stats() { stats_ = SchedulerStats(); }

void Scheduler::check_invariants() const {
  pool().check_invariants();
  std::vector<int32_t> references(static_cast<size_t>(pool().num_blocks()), 0);
  const auto count_references = [&](const BlockLists& lists) {
    for (const std::vector<int32_t>& list : lists.of_kind) {
      for (const int32_t block : list) {
        if (block != kNoBlock) ++references[static_cast<size_t>(block)];
      }
    }
  };
  const auto check_lists = [&](const BlockLists& lists, int64_t tokens) {
    for (size_t k = 0; k < lists.of_kind.size(); ++k) {
      TANDEM_CHECK_EQ(std::ssize(lists.of_kind[k]), blocks_of(config_.kinds[k], tokens));
    }
    TANDEM_CHECK(tokens == 0 || !lists.empty());
  };
  int64_t num_running = 0;
  int64_t num_waiting = 0;
  int64_t num_pending = 0;
  int64_t num_unanswered = 0;
  for (const Sequence& sequence : sequences_) {
    num_running += sequence.state == State::kRunning ? 1 : 0;
    num_waiting += sequence.state == State::kWaiting ? 1 : 0;
    TANDEM_CHECK_EQ(sequence.state == State::kUnused, sequence.group == nullptr);
    if (sequence.group == nullptr) continue;
    check_lists(sequence.blocks, sequence.computed + sequence.num_drafts());
    TANDEM_CHECK(sequence.computed <= sequence.num_tokens() && sequence.num_tokens() <= sequence.max_tokens);
    num_pending += sequence.num_pending;
    num_unanswered += (sequence.draws ? 1 : 0) + sequence.num_drafts() + sequence.num_dropped_draws;
    if (sequence.state == State::kFinished) TANDEM_CHECK(sequence.blocks.empty());
    count_references(sequence.blocks);
    TANDEM_CHECK(blocks_.holds_window(sequence.blocks, sequence.computed), "the first block is seen, and gone");
    for (size_t k = 0; k < sequence.blocks.of_kind.size(); ++k) {
      const std::vector<int32_t>& blocks = sequence.blocks.of_kind[k];
      const size_t prompt_tokens = sequence.group->prompt->tokens.size();
      for (size_t i = 0; i < blocks.size(); ++i) {
        TANDEM_CHECK(blocks[i] != kNoBlock || i == 0 || blocks[i - 1] == kNoBlock, "a block is seen, and gone");
        // Several sequences share nothing but the prompt.
        TANDEM_CHECK(blocks[i] == kNoBlock || pool().reference_count(blocks[i]) == 1 ||
                         i * static_cast<size_t>(config_.kinds[k].tokens) < prompt_tokens,
                     "block", blocks[i]);
      }
    }
  }
  for (const auto& [sample_id, prefix] : kept_) {
    count_references(prefix.blocks);
    if (!prefix.blocks.empty()) check_lists(prefix.blocks, std::ssize(prefix.tokens));
  }
  for (int64_t block = 0; block < pool().num_blocks(); ++block) {
    TANDEM_CHECK_EQ(references[static_cast<size_t>(block)], pool().reference_count(static_cast<int32_t>(block)), block);
  }
  TANDEM_CHECK_EQ(num_running, this->num_running());
  TANDEM_CHECK_EQ(num_waiting, this->num_waiting());
  TANDEM_CHECK_EQ(num_pending, num_pending_);
  TANDEM_CHECK_EQ(num_unanswered, num_unanswered_);
  std::vector<SequenceId> queue = running_;
  queue.insert(queue.end(), waiting_.begin(), waiting_.end());
  for (size_t i = 0; i < queue.size(); ++i) {
    const Sequence& sequence = at(queue[i]);
    TANDEM_CHECK_EQ(sequence.state == State::kRunning, i < running_.size());
    TANDEM_CHECK(i == 0 || at(queue[i - 1]).arrival < sequence.arrival, "sequence", queue[i], "is out of order");
    TANDEM_CHECK(i <= running_.size() || sequence.blocks.empty(), "sequence", queue[i], "waits and holds blocks");
    if (i >= running_.size()) continue;
    TANDEM_CHECK_EQ(sequence.computed + (sequence.draws ? 0 : 1), sequence.num_tokens(), "sequence", queue[i]);
  }
}

}  // namespace tandem::rollout
