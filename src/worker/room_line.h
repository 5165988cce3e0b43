// Our line to the process that keeps a worker's room (python/tandem_worker/room.py) and runs none of the user's code.
// Closing it ends all that is in the room. A worker has no part in it: what is believed about processes comes from here
// or from the kernel.
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

  // Asks the keeper of a warm parent, whose line this is, for a room, and makes `other_end` the room's line.
  void ask_for_room(const Descriptor& other_end);
  // Of a new room: descriptors of its namespaces. WorkerError says why there is none.
  std::vector<Descriptor> namespaces(double deadline_s);

  // What runs and lies in the room now belongs to the worker. False: the room is gone.
  bool note_what_belongs(double deadline_s);
  // Whether a call left something; the answer is waited for by the second. Files are removed by that.
  void ask_what_is_left();
  // What cannot be removed, or "" for nothing; also where ask_what_is_left() was not called since.
  std::string what_is_left(double deadline_s);
  // Whether the room was ended because it took too much memory.
  bool ran_out_of_memory(double deadline_s);

  void close() { line_.close(); }

 private:
  std::optional<char> answer_to(char question, double deadline_s);
  std::optional<char> answer(double deadline_s);

  Descriptor line_;
  bool asked_what_is_left_ = false;
};

}  // namespace tandem::worker
