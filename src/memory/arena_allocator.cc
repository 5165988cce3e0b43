#include "memory/arena_allocator.h"

#include <utility>

#include "base/check.h"

namespace tandem::memory {

namespace {

std::atomic<Tag> label_tag = Tag::kOverhead;
std::atomic<const char*> label_name = "";
std::atomic<ArenaAllocator*> installed = nullptr;
thread_local int outside_phases = 0;

}  // namespace

TagScope::TagScope(Tag tag, const char* name) : tag_before_(label_tag), name_before_(label_name) {
  label_tag = tag;
  label_name = name;
}

TagScope::~TagScope() {
  label_tag = tag_before_;
  label_name = name_before_;
}

SavedForBackwardScope::SavedForBackwardScope(Tag tag, Tag survivors) : scope_(tag), tag_(tag), survivors_(survivors) {
  if (const ArenaAllocator* const memory = installed) mark_ = memory->arena_.mark(view_of(memory->arena_.phase()));
}

SavedForBackwardScope::~SavedForBackwardScope() {
  if (ArenaAllocator* const memory = installed)
    memory->arena_.retag(view_of(memory->arena_.phase()), mark_, tag_, survivors_);
}

void retag(const void* address, Tag tag) {
  ArenaAllocator* const memory = installed;
  if (memory == nullptr || !memory->arena_.owns(address)) return;
  memory->arena_.retag(static_cast<std::byte*>(const_cast<void*>(address)), tag);
}

BypassArena::BypassArena() { ++outside_phases; }
BypassArena::~BypassArena() { --outside_phases; }

ArenaAllocator::ArenaAllocator(Arena& arena) : arena_(arena) {
  ArenaAllocator* none = nullptr;
  TANDEM_CHECK(installed.compare_exchange_strong(none, this), "one arena at a time");
}

ArenaAllocator::~ArenaAllocator() { installed = nullptr; }

std::byte* ArenaAllocator::allocate(int64_t bytes) {
  const Phase phase = arena_.phase();
  if (phase == Phase::kLoad || outside_phases > 0) return nullptr;
  const Tag tag = label_tag.load(std::memory_order_relaxed);
  const char* const name = label_name;
  std::byte* const address = arena_.allocate(view_of(phase), bytes, tag, *name == '\0' ? to_string(tag) : name);
  TANDEM_ENV_CHECK(address != nullptr, arena_.shortage(view_of(phase), bytes, tag));
  return address;
}

bool ArenaAllocator::free(std::byte* address) {
  if (!arena_.owns(address)) return false;
  arena_.free(address);
  return true;
}

}  // namespace tandem::memory
