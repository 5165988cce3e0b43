// Checks that ranks were started alike: each states its settings as a text, and the texts are compared. No torch.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace tandem::mesh {

struct RankFacts {
  std::string version = "";
  int contract = 0;  // value of kBackendContract
  int size = 1;
  std::string host = "";
  std::string random = "";                        // random digits that no other run has
  std::map<std::string, std::string> flags = {};  // flags that results depend on
  std::string device = "";                        // name that no other device has; "": ranks may share it
  bool is_inexact = false;   // true if the check of its device found that a row's bits depend on its batch
  std::string kernels = "";  // what computes on its device (device::Ops::name()); "": not known yet
};

std::string text_of(const RankFacts& facts);
// Throws EnvironmentError if the text is not such facts.
RankFacts facts_of(const std::string& text);

// Returns "" if all are alike, each on a device of its own; else a line that names two ranks and the first thing in
// which they differ, or their device: "rank 1 (b) was started with --lr 2e-6, rank 0 (a) with --lr 1e-6; ...". Hosts
// may differ.
std::string disagreement(const std::vector<RankFacts>& ranks);

// Returns "" if another process has the kernels of rank 0, `first`; else a line for a warning, in which it is called
// `name`. That is no error (two models of GPU may share a run), but the bits of a log-prob then depend on who computes
// it.
std::string other_kernels(const RankFacts& first, const RankFacts& other, const std::string& name);

}  // namespace tandem::mesh
