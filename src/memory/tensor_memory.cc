#include "memory/tensor_memory.h"

#include <utility>

#include "base/check.h"

namespace tandem::memory {

namespace {

std::atomic<Tag> label_tag = Tag::kOverhead;
std::atomic<const char*> label_name = "";
std::atomic<TensorMemory*> installed = nullptr;
thread_local int outside_phases = 0;

}  // namespace

Tag current_tag() { return label_tag.load(std::memory_order_relaxed); }

TagScope::TagScope(Tag tag, const char* name) : tag_before_(label_tag), name_before_(label_name) {
  label_tag = tag;
  label_name = name;
}

TagScope::~TagScope() {
  label_tag = tag_before_;
  label_name = name_before_;
}

SurvivorScope::SurvivorScope(Tag tag, Tag survivors) : scope_(tag), tag_(tag), survivors_(survivors) {
  if (const TensorMemory* const memory = installed) mark_ = memory->arena_.mark(view_of(memory->arena_.phase()));
}

SurvivorScope::~SurvivorScope() {
  if (TensorMemory* const memory = installed)
    memory->arena_.retag(view_of(memory->arena_.phase()), mark_, tag_, survivors_);
}

void retag(const void* address, Tag tag) {
  TensorMemory* const memory = installed;
  if (memory == nullptr || !memory->arena_.owns(address)) return;
  memory->arena_.retag(static_cast<std::byte*>(const_cast<void*>(address)), tag);
}

OutsidePhases::OutsidePhases() { ++outside_phases; }
OutsidePhases::~OutsidePhases() { --outside_phases; }

TensorMemory::TensorMemory(Arena& arena) : arena_(arena) {
  TensorMemory* none = nullptr;
  TANDEM_CHECK(installed.compare_exchange_strong(none, this), "one arena at a time");
}

TensorMemory::~TensorMemory() { installed = nullptr; }

std::byte* TensorMemory::allocate(int64_t bytes) {
  const Phase phase = arena_.phase();
  if (phase == Phase::kLoad || outside_phases > 0) return nullptr;
  const Tag tag = current_tag();
  const char* const name = label_name;
  std::byte* const address = arena_.allocate(view_of(phase), bytes, tag, *name == '\0' ? to_string(tag) : name);
  TANDEM_ENV_CHECK(address != nullptr, arena_.shortage(view_of(phase), bytes, tag));
  return address;
}

bool TensorMemory::free(std::byte* address) {
  if (!arena_.owns(address)) return false;
  arena_.free(address);
  return true;
}

}  // namespace tandem::memory
