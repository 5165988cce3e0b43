// Whether ranks were started alike: what each says of itself, as a text, and what differs. No torch.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace tandem::mesh {

struct RankFacts {
  std::string version;
  int contract = 0;  // kBackendContract
  int size = 1;
  std::string host;
  std::string random = "";                   // digits that no other run has
  std::map<std::string, std::string> flags;  // that results depend on
  std::string device = "";                   // what no other device has; "": ranks may share it
};

std::string text_of(const RankFacts& facts);
// EnvironmentError where the text is none of those.
RankFacts facts_of(const std::string& text);

// "" where all are alike, each on a device of its own, else a line that names two ranks and the first thing in which
// they differ, or their device: "rank 1 (b) was started with --lr 2e-6, rank 0 (a) with --lr 1e-6; ...". Hosts may
// differ.
std::string disagreement(const std::vector<RankFacts>& ranks);

}  // namespace tandem::mesh
