#include "rollout/scheduler.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.h"
#include "device/block.h"
#include "rollout/batch_limits.h"

namespace tandem::rollout {

using device::kBlockTokens;

namespace {

// Each running sequence must find so many blocks free before another one is let in, so that it is not thrown out again
// a few tokens later: recomputing it costs more than its slot gains.
constexpr int64_t kGrowthBlocks = 4;

// Stands for a block that a sequence has given up.
constexpr int32_t kNoBlock = -1;

int64_t blocks_for(int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

// The last token of a sequence ends it: nothing attends to it, so it has no KV.
int64_t max_blocks_for(int64_t max_tokens) { return blocks_for(max_tokens - 1); }

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config) : config_(config), pool_(config.num_blocks) {
  TANDEM_CHECK(config.max_batch_tokens > 0 && config.max_running > 0, config.max_batch_tokens, config.max_running);
  TANDEM_CHECK(config.lookahead == 0 || config.lookahead == 1, config.lookahead);
  TANDEM_CHECK(config.window >= 0, config.window);
  // Slots are 32-bit numbers.
  TANDEM_CHECK(config.num_blocks <= std::numeric_limits<int32_t>::max() / kBlockTokens, config.num_blocks);
}

bool Scheduler::fits(int64_t max_tokens) const { return most_blocks_for(max_tokens - 1) <= pool_.num_blocks(); }

int64_t Scheduler::most_blocks_for(int64_t tokens) const {
  return blocks_for(BatchLimits{.max_batch_tokens = config_.max_batch_tokens}.most_held_tokens(tokens, config_.window));
}

int64_t Scheduler::unseen_blocks(int64_t position) const {
  if (config_.window == 0) return 0;
  return std::max<int64_t>(position + 1 - config_.window, 0) / kBlockTokens;
}

bool Scheduler::holds_window(const std::vector<int32_t>& blocks, int64_t computed) const {
  const int64_t first = unseen_blocks(computed);  // those from there on are held, if this one is
  return first >= std::ssize(blocks) || blocks[static_cast<size_t>(first)] != kNoBlock;
}

void Scheduler::drop_unseen_blocks(Sequence& sequence) {
  for (int64_t i = std::min(unseen_blocks(sequence.computed), std::ssize(sequence.blocks)) - 1; i >= 0; --i) {
    int32_t& block = sequence.blocks[static_cast<size_t>(i)];
    if (block == kNoBlock) return;  // so are all before it
    pool_.release(std::exchange(block, kNoBlock));
  }
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
  for (const SequenceId id : running_) drop_unseen_blocks(at(id));
  plan_decodes(drafts);
  plan_prefills();
  left_waiting_ = !waiting_.empty();
  fill_block_table();
  // A full sequence holds its blocks until its last token is there; then waiting sequences can have them.
  TANDEM_CHECK(!plan_.empty() || idle() || num_pending_ > 0, "waiting sequences, and nothing can run");
  stats_.peak_blocks = std::max(stats_.peak_blocks, pool_.num_used());
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
  plan_.slot_mapping.clear();
  plan_.sequences.clear();
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
  while (std::ssize(sequence.blocks) * kBlockTokens < begin + wanted && pool_.num_free() > num_running()) {
    sequence.blocks.push_back(*pool_.allocate());
  }
  const int64_t count = std::min(wanted, std::ssize(sequence.blocks) * kBlockTokens - begin);
  sequence.drafts.assign(guesses.begin(), guesses.begin() + count);
  has_drafts_ = has_drafts_ || count > 0;
}

void Scheduler::drop_drafts(Sequence& sequence) {
  sequence.num_dropped_draws += sequence.num_drafts();
  sequence.drafts.clear();
  while (std::ssize(sequence.blocks) > blocks_for(sequence.computed)) {
    pool_.release(sequence.blocks.back());
    sequence.blocks.pop_back();
  }
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
    drop_unseen_blocks(sequence);
    const int64_t budget = config_.max_batch_tokens - plan_.num_rows();
    const int64_t end = grow(sequence, std::min(sequence.num_tokens(), sequence.computed + budget));
    if (end > sequence.computed) add_rows(id, end);
    if (sequence.computed < sequence.num_tokens()) return;  // out of rows or blocks: continues with the next plan
    waiting_.pop_front();
    sequence.state = State::kRunning;
    running_.push_back(id);
    if (sequence.num_generated() == 0) fork(id);
  }
}

int64_t Scheduler::growth_blocks(const Sequence& sequence, int64_t held_blocks) const {
  return std::clamp<int64_t>(max_blocks_for(sequence.max_tokens) - held_blocks, 0, kGrowthBlocks);
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
  int64_t needed = most_blocks_for(tokens);
  needed -= std::min(needed, own_kept_blocks(sequence));
  if (sequence.num_generated() == 0) {
    for (const SequenceId id : sequence.group->members) {  // each that starts here copies the partial block
      if (at(id).num_generated() == 0) needed += growth_blocks(at(id), tokens / kBlockTokens);
    }
  } else {
    needed += growth_blocks(sequence, needed);
    if (running_sibling(sequence)) {
      const int64_t shared = full_prompt_blocks(sequence);
      needed -= std::min(needed, shared - unseen_blocks(shared * kBlockTokens));
    }
  }
  for (const SequenceId id : running_) {
    if (needed > pool_.num_free()) return false;
    needed += growth_blocks(at(id), static_cast<int64_t>(at(id).blocks.size()));
  }
  return needed <= pool_.num_free();
}

std::optional<SequenceId> Scheduler::running_sibling(const Sequence& sequence) const {
  for (const SequenceId id : sequence.group->members) {
    if (at(id).state != State::kRunning) continue;
    if (holds_window(at(id).blocks, full_prompt_blocks(sequence) * kBlockTokens)) return id;
  }
  return std::nullopt;
}

int64_t Scheduler::full_prompt_blocks(const Sequence& sequence) {
  return static_cast<int64_t>(sequence.group->prompt->tokens.size()) / kBlockTokens;
}

void Scheduler::adopt_prompt_blocks(Sequence& sequence) {
  // If nothing is generated yet, the first sample computes the prompt and the others start from it.
  const std::optional<SequenceId> sibling = running_sibling(sequence);
  if (!sibling) return;
  // Blocks that a sibling writes in this very forward are usable: each layer stores all keys before it reads any.
  const std::vector<int32_t>& blocks = at(*sibling).blocks;
  share_blocks(sequence, blocks, full_prompt_blocks(sequence));
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
  return holds_window(kept->second.blocks, usable) ? blocks_for(usable) - unseen_blocks(usable) : 0;
}

void Scheduler::adopt_kept_blocks(Sequence& sequence) {
  const PrefixOwner& owner = *sequence.group->owner;
  if (const auto own = kept_.find(owner.sample_id); own != kept_.end()) {
    KeptPrefix& prefix = own->second;
    int64_t usable = usable_tokens(sequence, prefix.tokens);
    sequence.ever_computed = std::max(sequence.ever_computed, usable);
    // A block that others hold as well is full of common tokens; this sequence would write into it.
    if (!prefix.blocks.empty() && usable % kBlockTokens != 0 && holds_window(prefix.blocks, usable) &&
        pool_.reference_count(prefix.blocks[static_cast<size_t>(usable / kBlockTokens)]) > 1) {
      usable -= usable % kBlockTokens;
    }
    if (!prefix.blocks.empty() && usable > 0 && holds_window(prefix.blocks, usable)) {
      const auto num_blocks = static_cast<size_t>(blocks_for(usable));
      sequence.blocks.assign(prefix.blocks.begin(), prefix.blocks.begin() + static_cast<std::ptrdiff_t>(num_blocks));
      prefix.blocks.erase(prefix.blocks.begin(), prefix.blocks.begin() + static_cast<std::ptrdiff_t>(num_blocks));
      drop_blocks(prefix);
      kept_.erase(own);
      sequence.computed = usable;
      stats_.kept_tokens += usable;
      return;
    }
  }
  // The prompts of others of the group begin alike.
  const std::vector<int32_t>* donor = nullptr;
  int64_t most_blocks = 0;
  const auto offer = [&](const std::vector<int32_t>& blocks, int64_t usable) {
    const int64_t num_blocks = std::min<int64_t>(usable / kBlockTokens, std::ssize(blocks));
    if (num_blocks <= most_blocks || !holds_window(blocks, num_blocks * kBlockTokens)) return;
    most_blocks = num_blocks;
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
  share_blocks(sequence, *donor, most_blocks);
  stats_.shared_prompt_tokens += sequence.computed;
}

void Scheduler::share_blocks(Sequence& sequence, const std::vector<int32_t>& blocks, int64_t num_blocks) {
  sequence.blocks.assign(blocks.begin(), blocks.begin() + num_blocks);
  add_references(sequence.blocks);
  sequence.computed = num_blocks * kBlockTokens;
}

void Scheduler::keep_prefix(const Sequence& sequence) {
  const PrefixOwner& owner = *sequence.group->owner;
  KeptPrefix& prefix = kept_[owner.sample_id];
  drop_blocks(prefix);
  prefix = {.group_id = owner.group_id, .order = num_kept_++, .tokens = {}, .blocks = sequence.blocks};
  for (int64_t p = 0; p < sequence.computed; ++p) prefix.tokens.push_back(token_at(sequence, p));
  add_references(prefix.blocks);
}

void Scheduler::add_references(const std::vector<int32_t>& blocks) {
  for (const int32_t block : blocks) {
    if (block != kNoBlock) pool_.add_reference(block);
  }
}

void Scheduler::release(const std::vector<int32_t>& blocks) {
  for (const int32_t block : blocks) {
    if (block != kNoBlock) pool_.release(block);
  }
}

void Scheduler::drop_blocks(KeptPrefix& prefix) {
  release(prefix.blocks);
  prefix.blocks.clear();
}

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
  std::optional<int32_t> block = pool_.allocate();
  // The sequence has taken over what it can use of its owner's prefix; the rest goes last.
  while (!block && (drop_kept_blocks(sequence.group->owner) || drop_kept_blocks(std::nullopt))) {
    block = pool_.allocate();
  }
  return block;
}

bool Scheduler::prepare_decode_slot(Sequence& sequence) {
  const auto index = static_cast<size_t>(sequence.computed / kBlockTokens);
  if (index == sequence.blocks.size()) return grow(sequence, sequence.computed + 1) > sequence.computed;
  const int32_t shared = sequence.blocks[index];
  if (pool_.reference_count(shared) == 1) return true;
  const std::optional<int32_t> own = pool_.allocate();
  if (!own) return false;
  pool_.release(shared);
  sequence.blocks[index] = *own;
  plan_.copies.push_back({.from = shared, .to = *own});
  ++stats_.copies_on_write;
  return true;
}

int64_t Scheduler::grow(Sequence& sequence, int64_t end) {
  while (static_cast<int64_t>(sequence.blocks.size()) * kBlockTokens < end) {
    const std::optional<int32_t> block = allocate(sequence);
    if (!block) return static_cast<int64_t>(sequence.blocks.size()) * kBlockTokens;
    sequence.blocks.push_back(*block);
  }
  return end;
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
    plan_.slot_mapping.push_back(sequence.blocks[static_cast<size_t>(p / kBlockTokens)] *
                                     static_cast<int32_t>(kBlockTokens) +
                                 static_cast<int32_t>(p % kBlockTokens));
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
    sequence.blocks = at(first).blocks;
    add_references(sequence.blocks);
    sequence.computed = sequence.ever_computed = at(first).computed;
    stats_.shared_prompt_tokens += sequence.computed;
    running_.push_back(id);
    add_draw(id, first_draw.logits_index);
  }
}

void Scheduler::fill_block_table() {
  size_t max_blocks = 1;
  for (const SequenceId id : plan_.sequences) max_blocks = std::max(max_blocks, at(id).blocks.size());
  plan_.max_blocks = static_cast<int64_t>(max_blocks);
  plan_.block_table.assign(plan_.sequences.size() * max_blocks, 0);
  auto row = plan_.block_table.begin();
  for (const SequenceId id : plan_.sequences) {
    std::ranges::transform(at(id).blocks, row, [](int32_t block) { return block == kNoBlock ? 0 : block; });
    row += plan_.max_blocks;
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
  release(sequence.blocks);
  sequence.blocks.clear();
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
  pool_.check_invariants();
  std::vector<int32_t> references(static_cast<size_t>(pool_.num_blocks()), 0);
  int64_t num_running = 0;
  int64_t num_waiting = 0;
  int64_t num_pending = 0;
  int64_t num_unanswered = 0;
  for (const Sequence& sequence : sequences_) {
    num_running += sequence.state == State::kRunning ? 1 : 0;
    num_waiting += sequence.state == State::kWaiting ? 1 : 0;
    TANDEM_CHECK_EQ(sequence.state == State::kUnused, sequence.group == nullptr);
    if (sequence.group == nullptr) continue;
    TANDEM_CHECK_EQ(std::ssize(sequence.blocks), blocks_for(sequence.computed + sequence.num_drafts()));
    TANDEM_CHECK(sequence.computed <= sequence.num_tokens() && sequence.num_tokens() <= sequence.max_tokens);
    num_pending += sequence.num_pending;
    num_unanswered += (sequence.draws ? 1 : 0) + sequence.num_drafts() + sequence.num_dropped_draws;
    if (sequence.state == State::kFinished) TANDEM_CHECK(sequence.blocks.empty());
    for (size_t i = 0; i < sequence.blocks.size(); ++i) {
      const int32_t block = sequence.blocks[i];
      if (block == kNoBlock) {
        TANDEM_CHECK(static_cast<int64_t>(i) < unseen_blocks(sequence.computed), "block", i, "is seen, and gone");
        continue;
      }
      ++references[static_cast<size_t>(block)];
      // Several sequences share nothing but the prompt.
      TANDEM_CHECK(pool_.reference_count(block) == 1 || i * kBlockTokens < sequence.group->prompt->tokens.size(),
                   "block", block);
    }
  }
  for (const auto& [sample_id, prefix] : kept_) {
    for (const int32_t block : prefix.blocks) {
      if (block != kNoBlock) ++references[static_cast<size_t>(block)];
    }
    if (!prefix.blocks.empty())
      TANDEM_CHECK_EQ(std::ssize(prefix.blocks), blocks_for(std::ssize(prefix.tokens)), "prefix of sample", sample_id);
  }
  for (int64_t block = 0; block < pool_.num_blocks(); ++block) {
    TANDEM_CHECK_EQ(references[static_cast<size_t>(block)], pool_.reference_count(static_cast<int32_t>(block)), block);
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
