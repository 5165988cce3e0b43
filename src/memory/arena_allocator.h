// LibTorch's allocations in the phases of a run: they come from the arena, under the tag of whoever works. No torch.
//
// Code that computes says what for with scopes; they cost two stores and mean nothing where no ArenaAllocator is
// installed. One thread, which drives the step, makes scopes and phases; threads of a backward pass allocate under
// whatever is in force, since they know nothing of what they work for.
#pragma once

#include <atomic>

#include "device/allocator_hook.h"
#include "memory/arena.h"
#include "memory/tag.h"

namespace tandem::memory {

// While it lives, allocations are of this tag. Scopes nest.
class TagScope {
 public:
  // `name` is a literal, for messages; "": the tag's own.
  explicit TagScope(Tag tag, const char* name = "");
  ~TagScope();
  TagScope(const TagScope&) = delete;
  TagScope& operator=(const TagScope&) = delete;

 private:
  Tag tag_before_;
  const char* name_before_;
};
Tag current_tag();  // kOverhead outside of all scopes

// A TagScope whose allocations are of another tag from its end on, as far as they are still there: what a forward
// computes with becomes what its backward reads.
class SavedForBackwardScope {
 public:
  SavedForBackwardScope(Tag tag, Tag survivors);
  ~SavedForBackwardScope();

 private:
  TagScope scope_;
  Tag tag_, survivors_;
  int64_t mark_ = 0;
};

// From now on the allocation that begins at `address` is of that tag. Nothing happens where it is not the arena's.
void retag(const void* address, Tag tag);

// While it lives, allocations of this thread are none of the arena's: for threads that work beside the phases.
class BypassArena {
 public:
  BypassArena();
  ~BypassArena();
  BypassArena(const BypassArena&) = delete;
  BypassArena& operator=(const BypassArena&) = delete;
};

// Installed for its life as the current one: rollout and train phases allocate from the arena's view of the phase,
// loading from LibTorch's own allocator. Borrows the arena. BugError: there is one already.
class ArenaAllocator final : public device::AllocatorHook {
 public:
  explicit ArenaAllocator(Arena& arena);
  ~ArenaAllocator() override;
  ArenaAllocator(const ArenaAllocator&) = delete;
  ArenaAllocator& operator=(const ArenaAllocator&) = delete;

  std::byte* allocate(int64_t bytes) override;
  bool free(std::byte* address) override;

 private:
  friend class SavedForBackwardScope;
  friend void retag(const void* address, Tag tag);

  Arena& arena_;
};

}  // namespace tandem::memory
