#include "worker/room_line.h"

#include <array>
#include <string_view>

#include "worker/worker_config.h"

namespace tandem::worker {
namespace {

// room.py and keeper.py of python/tandem_worker/sandbox read these bytes.
constexpr char kRoom = 'r';
constexpr char kBelongs = 'b';
constexpr char kCheck = 'c';
constexpr char kMemory = 'm';
constexpr char kYes = 'y';
constexpr size_t kNumNamespaces = 4;

std::string what_stands_for(char answer) {
  switch (answer) {
    case kYes: return "";
    case 'p': return "a running process";
    case 's': return "shared memory";
    case 'l': return "other limits";
    case 't': return "many threads";
    case 'f': return "more files than could be removed";
    default: return "something";
  }
}

}  // namespace

void RoomLine::ask_for_room(const Descriptor& other_end) {
  if (send(line_.get(), std::string_view(&kRoom, 1), {other_end.get()}) != 1) {
    throw WorkerError("there is no room for a grader: the process that makes them is gone");
  }
}

std::vector<Descriptor> RoomLine::namespaces(double deadline_s) {
  std::array<char, 1024> text;
  if (!wait_to_read(line_, deadline_s)) throw WorkerError("there is no room for a grader: nobody answered");
  Received received = receive(line_.get(), text.data(), text.size());
  if (received.num_bytes == 1 && text[0] == kYes && received.descriptors.size() == kNumNamespaces) {
    return std::move(received.descriptors);
  }
  if (received.num_bytes == 1 && text[0] == kYes) {  // the kernel drops descriptors for which there is no number
    throw WorkerError("there is no room for a grader: no descriptor is left (ulimit -n); allow more");
  }
  const std::string_view why(text.data(), static_cast<size_t>(std::max<ssize_t>(received.num_bytes, 0)));
  throw WorkerError("there is no room for a grader: " + (why.empty() ? "its process ended" : std::string(why)));
}

bool RoomLine::note_what_belongs(double deadline_s) { return answer_to(kBelongs, deadline_s) == kYes; }

void RoomLine::ask_what_is_left() {
  asked_what_is_left_ = line_.is_open() && send(line_.get(), std::string_view(&kCheck, 1)) == 1;
}

std::string RoomLine::what_is_left(double deadline_s) {
  if (!asked_what_is_left_) return "";
  asked_what_is_left_ = false;
  const std::optional<char> answered = answer(deadline_s);
  return answered ? what_stands_for(*answered) : "";  // a room that is gone has nothing in it
}

bool RoomLine::ran_out_of_memory(double deadline_s) {
  what_is_left(deadline_s);  // the answer to an earlier question comes first
  return answer_to(kMemory, deadline_s) == kYes;
}

std::optional<char> RoomLine::answer_to(char question, double deadline_s) {
  if (!line_.is_open() || send(line_.get(), std::string_view(&question, 1)) != 1) return std::nullopt;
  return answer(deadline_s);
}

std::optional<char> RoomLine::answer(double deadline_s) {
  char byte = 0;
  if (!wait_to_read(line_, deadline_s)) return 'x';  // the supervisor cannot say, so there may be anything
  return receive(line_.get(), &byte, 1).num_bytes == 1 ? std::optional<char>(byte) : std::nullopt;
}

}  // namespace tandem::worker
