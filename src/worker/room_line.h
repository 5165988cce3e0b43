// Our line to the process that supervises a worker's room (python/tandem_worker/sandbox/room.py): namespaces, a scratch
// folder and limits for this worker alone. The supervisor runs none of the user's code. Closing the line ends all that
// is in the room. A worker has no part in it: what is believed about processes comes from here or from the kernel.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "worker/lines.h"

namespace tandem::worker {

class RoomLine {
 public:
  RoomLine() = default;
  explicit RoomLine(Descriptor line) : line_(std::move(line)) {}

  // Asks the supervisor of a forkserver, whose line this is, for a room, and makes `other_end` the room's line.
  void ask_for_room(const Descriptor& other_end);
  // Returns descriptors of a new room's namespaces. WorkerError says why there is no room.
  std::vector<Descriptor> namespaces(double deadline_s);

  // Declares that what runs and lies in the room now belongs to the worker. Returns false when the room is gone.
  bool note_what_belongs(double deadline_s);
  // Asks whether a call left something, and has its files removed. what_is_left() waits for the answer.
  void ask_what_is_left();
  // Returns what cannot be removed, or "" for nothing, and also where ask_what_is_left() was not called since.
  std::string what_is_left(double deadline_s);
  // Returns whether the room was ended because it took too much memory.
  bool ran_out_of_memory(double deadline_s);

  void close() { line_.close(); }

 private:
  std::optional<char> answer_to(char question, double deadline_s);
  std::optional<char> answer(double deadline_s);

  Descriptor line_;
  bool asked_what_is_left_ = false;
};

}  // namespace tandem::worker
