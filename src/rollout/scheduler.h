// Decides what the next forward computes: which tokens of which sequences, the slots of their KV, and which sequences
// draw a token from the result. It has host integers only; nothing here knows a model or a tensor.
//
// One sequence is one sample: the prompt of its group and its generated tokens. Rules:
//  - Sequences are served in the order in which they were added. Decodes come first, then waiting sequences are
//    prefilled, in chunks, as far as max_batch_tokens and the free blocks allow.
//  - A group's prompt is prefilled once, by its first sample. Then all samples of the group refer to its blocks; a
//    sample that writes into a block that others refer to gets a copy first.
//  - When blocks run out, the sequence that was added last gives up all of its blocks and waits. It recomputes its
//    tokens later, except full prompt blocks that a running sample of its group still has.
//  - A sequence may be added with tokens that it has already, a begun one. It waits as a preempted sequence does.
//  - A sequence may continue the computed tokens of its owner, a conversation: when it ends, its blocks are kept for
//    the owner's next sequence, which takes over those of the longest common prefix, and shares full blocks with others
//    of its group. Kept blocks are the first to go when blocks run out.
//  - With lookahead a forward is planned before the tokens of the previous one are known. Every sequence is then taken
//    to continue, unless it is full; results for one that has ended are dropped.
//  - Where layers see no more than a window of tokens, a sequence gives up the blocks of these layers that no later
//    token of it will see. It cannot lend them either: a sequence that would need them computes its tokens anew.
//  - A running sequence may get drafts: tokens that are guessed to follow its last one. Each is a row more, which draws
//    the token after it. Draws are taken as far as the drafts before them were drawn; the rest is dropped. Drafts take
//    free blocks and free rows, never those of another sequence.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "rl/sample.h"
#include "rollout/kv_allocator.h"
#include "rollout/prefix_owner.h"

namespace tandem::rollout {

struct SchedulerConfig {
  int64_t num_blocks = 0;
  int64_t max_batch_tokens = 0;  // rows of one forward
  int64_t max_running = 0;       // sequences that decode together
  int64_t lookahead = 0;         // 0 or 1: plans that may be made before the draws of the previous one are answered
  std::vector<BlockKind> kinds = {BlockKind()};  // KvLayout::kinds
};

using SequenceId = int32_t;  // small and dense; reused after the group has ended

// Describes one forward. A row is one token; rows of a sequence are consecutive and ascend by position.
struct ScheduledBatch {
  std::vector<BlockCopy> copies;         // copies to make first, in this order
  std::vector<int32_t> token_ids;        // [T]; -1 - i: the token of sample_slots[i] of the plan before this one
  std::vector<int32_t> positions;        // [T]
  std::vector<int32_t> sequence_of_row;  // [T] index into `sequences`
  std::vector<SequenceId> sequences;     // [S]
  // The places of the keys and values of rows and sequences. They are counted in tiles of kBlockTokens positions; a
  // block of the pool has one tile or more (KvLayout::tiles()).
  struct KvPlaces {
    std::vector<int32_t> slot_mapping;  // [T] slot of the row's KV: tile * kBlockTokens + offset
    std::vector<int32_t> block_table;   // [S, max_blocks] tiles, 0 past a sequence's, and before those it holds
  };
  std::vector<KvPlaces> places;  // by kind of block
  int64_t max_blocks = 0;
  std::vector<int32_t> logits_rows;  // [R] rows whose logits are needed, ascending
  struct SampleSlot {
    SequenceId sequence = 0;      // sequence that gets one token
    int32_t logits_index = 0;     // the token is drawn from logits_rows[logits_index]
    int32_t position = 0;         // number of tokens of its completion before it
    bool is_after_draft = false;  // the row's own token is a draft
  };
  std::vector<SampleSlot> sample_slots;  // ascending by logits_index; several samples of a group may share a row

  bool empty() const { return token_ids.empty(); }
  int64_t num_rows() const { return static_cast<int64_t>(token_ids.size()); }
};

struct SchedulerStats {
  int64_t prefill_tokens = 0;        // prompt tokens computed for the first time
  int64_t shared_prompt_tokens = 0;  // prompt tokens that a sample took over from another one of its group
  int64_t recomputed_tokens = 0;     // tokens computed again after their blocks were given up
  int64_t resumed_tokens = 0;        // begun sequences' own tokens, computed for the first time here
  int64_t kept_tokens = 0;           // tokens whose KV a sequence took over from the previous one of its owner
  int64_t kept_dropped = 0;          // kept prefixes that gave up their blocks
  int64_t preemptions = 0, copies_on_write = 0;
  int64_t peak_running = 0;  // sequences in one decode batch
  int64_t peak_blocks = 0;
};

// Tokens that sequences are guessed to draw next, in order.
using Drafts = std::map<SequenceId, std::vector<int32_t>>;

// Describes a sequence to add to a group.
struct NewSequence {
  int64_t max_tokens = 0;               // most tokens, of prompt and completion, that it may have
  std::vector<int32_t> generated = {};  // its completion so far
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerConfig& config);

  // Returns whether a sequence of that many tokens (prompt and completion) can run when it has the cache for itself.
  bool fits(int64_t max_tokens) const;

  // Queues sequences over one prompt and returns their ids, in the same order. Those without a token are served before
  // the begun ones.
  std::vector<SequenceId> add_group(rl::SharedPrompt prompt, std::vector<NewSequence> sequences);
  // Queues one sequence of an owner, which may have several at once. A sequence that finish() ends is kept as the
  // owner's prefix until another one of the owner ends or release_prefix().
  SequenceId add_owned(rl::SharedPrompt prompt, const PrefixOwner& owner, NewSequence sequence);
  void release_prefix(uint64_t sample_id);

  // Returns the next forward. It is empty when nothing can run: nothing is left, or, with lookahead, draws must be
  // answered first. The plan stays valid until the next call. append() must answer each of its draws, in order, and
  // finish() end those that have ended: before the next plan, or with lookahead before the one after that. Forwards
  // must run in the order of their plans.
  //
  // A running sequence that has drafts gets a draw after each of them, as far as rows, blocks and its length allow. A
  // plan with drafts is made when all draws are answered, and its own are answered before the next plan, also with
  // lookahead.
  const ScheduledBatch& plan(const Drafts& drafts = {});
  // Takes the token of the sequence's draw. Returns false if the sequence had ended when it was drawn, or if a draft
  // before it was not what was drawn; then the token is dropped.
  bool append(SequenceId sequence, int32_t token);
  // Ends the sequence: its blocks are freed.
  void finish(SequenceId sequence);
  // Ends the remaining sequences of the group, whatever state they are in. All draws are answered.
  void finish_group(SequenceId any_member);

  // Forgets every kept prefix, because its keys and values belong to other weights by now.
  void release_prefixes();
  bool idle() const { return running_.empty() && waiting_.empty(); }
  const std::vector<SequenceId>& running() const { return running_; }  // in the order of service
  // Returns whether the last plan left no sequence waiting, and one forward can prefill all that has been added since.
  bool has_room() const;
  const BlockPool& pool() const { return blocks_.pool(); }
  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  const SchedulerStats& stats() const { return stats_; }
  void reset_stats();

  // Throws BugError when blocks, tables, states and queues contradict each other.
  void check_invariants() const;

 private:
  struct PromptGroup {
    rl::SharedPrompt prompt;
    std::vector<SequenceId> members;
    int64_t num_unfinished = 0;
    int64_t num_unanswered = 0;  // draws of its members without an answer
    std::optional<PrefixOwner> owner;
  };
  // The computed tokens of an owner's last sequence that ended.
  struct KeptPrefix {
    uint64_t group_id = 0;
    uint64_t order = 0;           // number in the order of keeping
    std::vector<int32_t> tokens;  // tokens whose KV is, or was, in the blocks
    BlockLists blocks;            // empty when they had to go
  };
  enum class State : uint8_t {
    kUnused,     // the id is free
    kUnstarted,  // its group's first sample has not finished the prompt yet
    kWaiting,    // in waiting_; only the first one there may hold blocks, of a prefill that has begun
    kRunning,    // in running_; has KV of all its tokens but the last one
    kFinished,   // others of its group are not finished, or a draw is not answered
  };
  struct Sequence {
    State state = State::kUnused;
    std::shared_ptr<PromptGroup> group;
    uint64_t arrival = 0;  // number in the total order of service
    std::vector<int32_t> generated;
    // An earlier plan may draw one more token that append() has not brought: num_pending is 0 or 1, pending_draw its
    // draw.
    int64_t num_pending = 0;
    int32_t pending_draw = 0;
    bool draws = false;  // drawn in the last plan, and not answered by append()
    // Drafts of the last plan from the one on that the next answer is compared with; each has a draw of its own.
    std::vector<int32_t> drafts;
    int64_t num_dropped_draws = 0;  // draws of the last plan, not answered yet, that append() will drop
    BlockLists blocks;              // of the tokens before `computed`, and of the drafts
    int64_t computed = 0;           // tokens whose KV is in the cache once the planned forwards have run
    int64_t ever_computed = 0;      // largest value of `computed` so far
    int64_t max_tokens = 0;
    int64_t num_begun = 0;  // generated tokens that it was added with
    int64_t num_generated() const { return static_cast<int64_t>(generated.size()) + num_pending; }
    int64_t num_tokens() const { return static_cast<int64_t>(group->prompt->tokens.size()) + num_generated(); }
    int64_t num_drafts() const { return static_cast<int64_t>(drafts.size()); }
    bool is_full() const { return num_tokens() == max_tokens; }
  };

  Sequence& at(SequenceId id) { return sequences_[static_cast<size_t>(id)]; }
  const Sequence& at(SequenceId id) const { return sequences_[static_cast<size_t>(id)]; }

  // Draws of the last plan that are not answered become pending tokens.
  void begin_plan();
  void plan_decodes(const Drafts& drafts);
  // Gives the sequence drafts, whose last token has its slot: as many as `guesses`, its length, rows for it and for the
  // `num_after` sequences that come after it, and free blocks allow.
  void take_drafts(Sequence& sequence, const std::vector<int32_t>& guesses, int64_t num_after);
  // Ends what is left of the sequence's drafts: their draws will be dropped, their blocks are free.
  void drop_drafts(Sequence& sequence);
  void plan_prefills();
  bool has_room_for(const Sequence& sequence) const;
  // Returns a running sample of the group that has the full prompt blocks.
  std::optional<SequenceId> running_sibling(const Sequence& sequence) const;
  // Returns the tokens of the prompt whose blocks are full.
  int64_t full_prompt_tokens(const Sequence& sequence) const;
  // Takes over the full prompt blocks of a running sample of the group, where there is one.
  void adopt_prompt_blocks(Sequence& sequence);
  // Returns how many tokens of a prefix the sequence begins with and need not compute; at least one is left to draw
  // from.
  static int64_t usable_tokens(const Sequence& sequence, const std::vector<int32_t>& prefix);
  // Takes over the kept blocks of the owner's last sequence, or else shares the full blocks that begin like this
  // sequence.
  void adopt_kept_blocks(Sequence& sequence);
  void share_blocks(Sequence& sequence, const BlockLists& blocks, int64_t tokens);
  // Returns the blocks that adopt_kept_blocks() will take over from the owner's prefix.
  int64_t own_kept_blocks(const Sequence& sequence) const;
  void keep_prefix(const Sequence& sequence);
  void drop_blocks(KeptPrefix& prefix);
  // Takes the blocks of the prefix that was kept last, except this owner's. Returns false when none has any.
  bool drop_kept_blocks(const std::optional<PrefixOwner>& spared);
  bool make_room(const Sequence& sequence);
  std::optional<int32_t> allocate(const Sequence& sequence);
  // Makes the slot of the next token writable. Returns false when no block is free.
  bool prepare_decode_slot(Sequence& sequence);
  // Adds blocks for positions up to `end`. Returns how far they reach.
  int64_t grow(Sequence& sequence, int64_t end);
  // Adds the rows of positions from `computed` to `end`, and then those of its drafts.
  void add_rows(SequenceId id, int64_t end);
  int32_t token_at(const Sequence& sequence, int64_t position) const;
  // Adds a draw from those logits, after so many of the sequence's drafts.
  void add_draw(SequenceId id, int32_t logits_index, int64_t num_drafts = 0);
  // Starts the samples of the group that have no token from the prompt that `first` has just finished.
  void fork(SequenceId first);
  void fill_block_tables();

  SequenceId last_holder() const;
  void preempt(SequenceId id);
  void release_blocks(Sequence& sequence);
  void leave_queue(SequenceId id);
  void retire(SequenceId id);
  // Frees the group's ids when all members have finished and all draws are answered.
  void free_ids(const std::shared_ptr<PromptGroup>& group);

  SchedulerConfig config_;
  KvAllocator blocks_;
  std::vector<Sequence> sequences_;  // by id
  std::vector<SequenceId> unused_ids_;
  std::vector<SequenceId> running_;      // ascending by arrival
  std::deque<SequenceId> waiting_;       // ascending by arrival, all after running_
  std::map<uint64_t, KeptPrefix> kept_;  // by sample id
  uint64_t num_kept_ = 0;                // prefixes kept so far
  uint64_t next_arrival_ = 0;
  bool left_waiting_ = false;  // whether the last plan left sequences waiting
  // Draws that append() has not answered: those of the last plan, and those of the plan before it.
  int64_t num_unanswered_ = 0, num_pending_ = 0;
  bool has_drafts_ = false;  // whether the last plan has drafts
  ScheduledBatch plan_;
  SchedulerStats stats_;
};

}  // namespace tandem::rollout
