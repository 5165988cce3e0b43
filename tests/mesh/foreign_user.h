// Acts as another user of the machine, for tests that run as root.
#pragma once

#include <functional>
#include <string>

namespace tandem::mesh {

constexpr unsigned kForeignUser = 4321;

// Says why this process cannot become another user; "" if it can.
std::string why_no_foreign_user();
// Makes this process that user, without groups or capabilities, for good.
void become_foreign_user();
// Connects to every socket in the folders of `user`'s runs, for as long as a process runs. Returns 0 if it was refused
// each time, 100 if there was none, 101 if it was let in.
int enter_local_sockets_of(unsigned user, int process);
// Runs `work` in a process of that user, and returns its result.
std::string as_foreign_user(const std::function<std::string()>& work);

}  // namespace tandem::mesh
