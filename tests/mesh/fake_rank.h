// What a rank of the launcher's tests does: a word of the command line for each rank.
#pragma once

namespace tandem::mesh {

// "--rank WORD WORD ...": word number LOCAL_RANK says what this process does. See fake_rank.cc.
int run_fake_rank(int argc, char** argv);
// "--launch WORD ...": what `tandem launch` does, with a rank for each word; prints what it says. The first word
// "host:1" is no rank's: the launcher is then that of the second of two hosts.
int run_fake_launcher(int argc, char** argv);

}  // namespace tandem::mesh
