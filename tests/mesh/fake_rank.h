// The ranks of the launcher's tests: a word of the command line for each rank says what it does.
#pragma once

namespace tandem::mesh {

// "--rank WORD WORD ...": word number LOCAL_RANK says what this process does; fake_rank.cc has the words.
int run_fake_rank(int argc, char** argv);
// "--launch WORD ..." does what `tandem launch` does, with a rank for each word, and prints what it says. The first
// word "host:1" is no rank's: the launcher is then that of the second of two hosts.
int run_fake_launcher(int argc, char** argv);

}  // namespace tandem::mesh
