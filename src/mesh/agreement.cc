#include "mesh/agreement.h"

#include <fmt/format.h>

#include "base/json.h"
#include "device/backends.h"
#include "tandem/error.h"

namespace tandem::mesh {

namespace {

std::string name_of(size_t rank, const RankFacts& facts) { return fmt::format("rank {} ({})", rank, facts.host); }

// Returns "--lr 1e-6", or "no --lr" if a rank's program has no such flag.
std::string flag_of(const RankFacts& facts, const std::string& name) {
  const auto found = facts.flags.find(name);
  return found == facts.flags.end() ? "no --" + name : fmt::format("--{} {}", name, found->second);
}

std::string exactness_of(const RankFacts& facts) {
  return facts.is_inexact ? "a device whose bits depend on the batch (--allow-inexact)" : "one whose bits do not";
}

// Returns the first flag that the two have differently; "" for none.
std::string differing_flag(const RankFacts& a, const RankFacts& b) {
  for (const auto& [name, value] : a.flags) {
    if (flag_of(a, name) != flag_of(b, name)) return name;
  }
  for (const auto& [name, value] : b.flags) {
    if (a.flags.count(name) == 0) return name;
  }
  return "";
}

// " (CUDA_VISIBLE_DEVICES)": the variable that shows a rank its devices; "" where its flags name no backend that has
// one.
std::string visible_devices(const RankFacts& facts) {
  const auto flag = facts.flags.find("device");
  if (flag == facts.flags.end()) return "";
  const device::BackendRow* const row = device::find_backend(flag->second.substr(0, flag->second.find(':')));
  return row == nullptr || *row->visible_devices == 0 ? "" : fmt::format(" ({})", row->visible_devices);
}

// Returns a line that says which two ranks have the same device, or "" if none have.
std::string shared_device(const std::vector<RankFacts>& ranks) {
  std::map<std::string, size_t> ranks_of;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].device.empty()) continue;
    const auto [found, is_new] = ranks_of.try_emplace(ranks[i].device, i);
    if (is_new) continue;
    return fmt::format(
        "{} has the device of {}: {}; each takes the one of its number on its host, so let it see as many{}, or start "
        "fewer",
        name_of(i, ranks[i]), name_of(found->second, ranks[found->second]), ranks[i].device, visible_devices(ranks[i]));
  }
  return "";
}

}  // namespace

std::string text_of(const RankFacts& facts) {
  return base::Json({{"version", facts.version},
                     {"contract", facts.contract},
                     {"size", facts.size},
                     {"host", facts.host},
                     {"random", facts.random},
                     {"flags", facts.flags},
                     {"device", facts.device},
                     {"is_inexact", facts.is_inexact},
                     {"kernels", facts.kernels}})
      .dump(-1, ' ', /*ensure_ascii=*/false, base::Json::error_handler_t::replace);
}

RankFacts facts_of(const std::string& text) {
  try {
    const base::Json json = base::Json::parse(text);
    return {.version = json.at("version").get<std::string>(),
            .contract = json.at("contract").get<int>(),
            .size = json.at("size").get<int>(),
            .host = json.at("host").get<std::string>(),
            .random = json.at("random").get<std::string>(),
            .flags = json.at("flags").get<std::map<std::string, std::string>>(),
            .device = json.at("device").get<std::string>(),
            .is_inexact = json.at("is_inexact").get<bool>(),
            .kernels = json.at("kernels").get<std::string>()};
  } catch (const base::Json::exception&) {
    throw EnvironmentError("a process does not say how it was started; give all hosts the same program");
  }
}

std::string disagreement(const std::vector<RankFacts>& ranks) {
  const RankFacts& first = ranks.at(0);
  for (size_t i = 1; i < ranks.size(); ++i) {
    const RankFacts& other = ranks[i];
    const auto say = [&](const std::string& theirs, const std::string& ours, const char* remedy) {
      return fmt::format("{} was started with {}, {} with {}; {}", name_of(i, other), theirs, name_of(0, first), ours,
                         remedy);
    };
    const char* const same_program = "give all hosts the same program";
    if (other.version != first.version) {
      return say("Tandem " + other.version, "Tandem " + first.version, same_program);
    }
    if (other.contract != first.contract) {
      return say(fmt::format("backend contract {}", other.contract), fmt::format("{}", first.contract), same_program);
    }
    if (other.size != first.size) {
      return say(fmt::format("{} ranks", other.size), fmt::format("{}", first.size), "start them together");
    }
    if (const std::string name = differing_flag(first, other); !name.empty()) {
      return say(flag_of(other, name), flag_of(first, name), "give all ranks the same flags");
    }
    if (other.is_inexact != first.is_inexact) {
      return say(exactness_of(other), exactness_of(first),
                 "run `tandem device --check` on both hosts, and give all ranks devices of one kind and driver");
    }
  }
  return shared_device(ranks);
}

std::string other_kernels(const RankFacts& first, const RankFacts& other, const std::string& name) {
  if (other.kernels == first.kernels) return "";
  return fmt::format(
      "{} computes with {}, rank 0 ({}) with {}: they round differently, so log-probs of samples that one has drawn and "
      "another trains are not equal to the last bit (train/train_rollout_logprob_abs_diff); give all devices of one "
      "kind, or on CPUs one --cpu-isa",
      name, other.kernels, first.host, first.kernels);
}

}  // namespace tandem::mesh
