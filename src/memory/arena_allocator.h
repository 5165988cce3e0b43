// Serves LibTorch's allocations in the phases of a run from the arena, under the tag that is current. No torch.
//
// Code that computes declares with scopes what its memory is for; a scope costs two stores and has no effect without an
// ArenaAllocator. One thread, which drives the step, makes scopes and phases; threads of a backward pass allocate under
// the current ones, since they do not know which scope their work belongs to.
#pragma once

#include <atomic>

#include "device/allocator_hook.h"
#include "memory/arena.h"
#include "memory/tag.h"

namespace tandem::memory {

// Gives allocations this tag for as long as it lives. Scopes nest.
class TagScope {
 public:
  // `name` is a literal, for messages; "" stands for the tag's own name.
  explicit TagScope(Tag tag, const char* name = "");
  ~TagScope();
  TagScope(const TagScope&) = delete;
  TagScope& operator=(const TagScope&) = delete;

 private:
  Tag tag_before_;
  const char* name_before_;
};

// A TagScope at whose end the allocations that are still alive get another tag: the results of a forward pass become
// the inputs of its backward pass.
class SavedForBackwardScope {
 public:
  SavedForBackwardScope(Tag tag, Tag survivors);
  ~SavedForBackwardScope();

 private:
  TagScope scope_;
  Tag tag_, survivors_;
  int64_t mark_ = 0;
};

// Gives the allocation that begins at `address` that tag from now on. Does nothing if the arena does not own the
// address.
void retag(const void* address, Tag tag);

// Keeps this thread's allocations out of the arena for as long as it lives: for threads that run independently of the
// phases.
class BypassArena {
 public:
  BypassArena();
  ~BypassArena();
  BypassArena(const BypassArena&) = delete;
  BypassArena& operator=(const BypassArena&) = delete;
};

// It is the current allocator for as long as it lives: rollout and train phases allocate from the arena's view of the
// phase, loading from LibTorch's own allocator. Borrows the arena. Throws BugError if another one is installed.
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
