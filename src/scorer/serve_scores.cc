#include "scorer/serve_scores.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <future>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/checksum.h"
#include "base/log.h"
#include "base/message_text.h"
#include "base/version.h"
#include "mesh/channel_listener.h"
#include "mesh/hosts.h"
#include "mesh/network.h"
#include "report/report.h"
#include "rl/sample.h"
#include "scorer/address.h"
#include "scorer/messages.h"
#include "session/model_session.h"
#include "session/read_model.h"
#include "session/stop_signal.h"
#include "trainer/score.h"
#include "weights/checkpoint_files.h"

namespace tandem::scorer {

namespace {

constexpr int kLookEveryMs = 200;
constexpr double kPatience = 60.0;  // seconds that a run may take to read an answer, or be silent as a machine
constexpr size_t kMostAskers = 256;
constexpr double kFarewell = 2.0;  // seconds in which a run that is refused reads why

// Returns what a run on another machine gives for --opd-teacher-address.
std::string asked_at(const std::string& listen) {
  constexpr std::string_view kEveryAddress = "0.0.0.0:";
  if (!listen.starts_with(kEveryAddress)) return listen;
  return "HOST:" + listen.substr(kEveryAddress.size()) + ", HOST being a name of this machine";
}

mesh::NetworkDoor door_of(const Address& address, std::string secret) {
  if (!address.place) return {};
  return {.address = mesh::address_of_host(address.place->host, kPatience, "--listen"),
          .port = address.place->port,
          .secret = std::move(secret),
          .flag = "--listen"};
}

// Returns a checksum that other weights do not have: of the model's files, and those of the adapter if there is one;
// weights that are drawn are known by what they are drawn from.
std::string checksum_of(const config::ModelOptions& options, const session::ModelSession& session) {
  const session::ModelPlace place = session::find_model(options.hf_checkpoint);
  const std::string whole = options.random_init
                                ? base::checksum(fmt::format("--random-init --seed {} {}", options.seed,
                                                             base::file_checksum(session.directory() + "/config.json")))
                                : weights::weights_checksum(place.directory);
  if (place.adapter.empty()) return whole;
  return base::checksum(whole + weights::weights_checksum(place.adapter, weights::kAdapterFile));
}

// Returns the sample without its prompt.
rl::Sample sample_of(const AskedSample& asked) {
  rl::Sample sample;
  sample.completion = asked.completion;
  sample.sequence_begins = asked.sequence_begins;
  sample.loss_mask.assign(asked.completion.size(), 1);
  return sample;
}

// A run that asks. What is wrong with a question is its own fault.
struct Asker {
  std::unique_ptr<mesh::Channel> channel;
  std::string name = "a process that has not said who it is";
  bool is_welcome = false;
  bool has_asked = false;  // until then it only wants to know whether it may
  std::deque<Score> questions = {};
  int64_t num_samples = 0;
};

class Scorer {
 public:
  Scorer(const config::ScorerConfig& config, session::ModelSession& session, std::string weights_checksum,
         mesh::ChannelListener& listener)
      : batch_(config.batch),
        session_(session),
        weights_checksum_(std::move(weights_checksum)),
        listener_(listener),
        model_(session.make_model()) {}

  void serve_until_stopped() {
    while (!session::stop_requested()) {
      while (std::unique_ptr<mesh::Channel> channel = listener_.accept()) let_in(std::move(channel));
      for_each_asker([this](Asker& asker) { hear(asker); });
      if (!answer_next()) wait_for_news();
    }
  }

  int64_t num_samples() const { return num_samples_; }

 private:
  void let_in(std::unique_ptr<mesh::Channel> channel) {
    Asker asker{.channel = std::move(channel)};
    if (askers_.size() < kMostAskers) {
      askers_.push_back(std::move(asker));
    } else {
      refuse(asker, fmt::format("{} runs ask here already", kMostAskers));
    }
  }

  // Calls f for all. One whose channel has closed goes, and one that it is of no use to talk with is told why.
  template <typename F>
  void for_each_asker(F f) {
    for (auto asker = askers_.begin(); asker != askers_.end();) {
      const bool stays = guarded(*asker, f);
      asker = stays ? std::next(asker) : askers_.erase(asker);
    }
  }
  template <typename F>
  bool guarded(Asker& asker, F f) {
    try {
      f(asker);
      return true;
    } catch (const mesh::ChannelClosed&) {
      if (asker.has_asked)
        base::log_info("{} has gone; {} were scored for it", asker.name, base::counted(asker.num_samples, "sample"));
    } catch (const UserError& error) {
      refuse(asker, error.what());
    } catch (const EnvironmentError& error) {
      refuse(asker, error.what());
    }
    return false;
  }

  static void refuse(Asker& asker, const std::string& why) {
    base::log_warning("{} is turned away: {}", asker.name, why);
    try {
      asker.channel->send(to_bytes(Refused{why}));
      asker.channel->wait_until_closed(kFarewell);
    } catch (const mesh::ChannelClosed&) {
    }
  }

  void hear(Asker& asker) {
    while (const std::optional<std::string> frame = asker.channel->receive(0.0)) {
      Message message = message_of(*frame);
      if (const auto* const hello = std::get_if<Hello>(&message)) {
        welcome(asker, *hello);
        continue;
      }
      auto* const score = std::get_if<Score>(&message);
      TANDEM_ENV_CHECK(score != nullptr && asker.is_welcome, "it does not speak as a run of this program does");
      TANDEM_ENV_CHECK(asker.questions.size() < kPiecesAhead, "it asks for too much at once");
      check(*score);
      if (!std::exchange(asker.has_asked, true)) base::log_info("scores for {}", asker.name);
      asker.questions.push_back(std::move(*score));
    }
  }

  void welcome(Asker& asker, const Hello& hello) {
    asker.name = fmt::format("the run of process {} on {}", hello.process, hello.host);
    const model::ModelConfig& model = session_.config();
    TANDEM_USER_CHECK(
        hello.version == base::kVersion,
        fmt::format("it is Tandem {}, the run {}; start both from one build", base::kVersion, hello.version));
    TANDEM_USER_CHECK(model.vocab >= hello.vocab,
                      fmt::format("{} has a vocabulary of {} tokens, the run's --hf-checkpoint one of {}; a teacher "
                                  "scores the student's tokens, so it needs the same vocabulary",
                                  session_.directory(), model.vocab, hello.vocab));
    TANDEM_USER_CHECK(model.max_positions >= hello.context,
                      fmt::format("{} has a context of {} tokens, and a sample may have {}; lower "
                                  "--rollout-max-response-len or --rollout-max-prompt-len",
                                  session_.directory(), model.max_positions, hello.context));
    const std::vector<std::string>& ids = session_.text().token_bytes();
    TANDEM_USER_CHECK(std::ssize(ids) >= hello.num_ids && digest_of(ids, hello.num_ids) == hello.tokenizer,
                      fmt::format("the tokenizer of {} has other tokens than that of the run's --hf-checkpoint; a "
                                  "teacher needs the same vocabulary",
                                  session_.directory()));
    asker.is_welcome = true;
    asker.channel->send(to_bytes(Welcome{.model = session_.directory(),
                                         .dtype = model.dtype_name(),
                                         .weights = weights_checksum_,
                                         .max_tokens = batch_.max_tokens_per_gpu}));
  }

  // Checks what reaches the model.
  void check(const Score& score) const {
    const model::ModelConfig& model = session_.config();
    TANDEM_ENV_CHECK(std::isfinite(score.temperature) && score.temperature > 0.0,
                     "its temperature is no number above 0");
    const auto are_ids = [&](const std::vector<int32_t>& tokens) {
      return std::ranges::all_of(tokens, [&](int32_t id) { return id >= 0 && id < model.vocab; });
    };
    for (const AskedGroup& group : score.groups) {
      bool is_sound = !group.prompt.empty() && are_ids(group.prompt);
      for (const AskedSample& sample : group.samples) {
        is_sound = is_sound && are_ids(sample.completion) &&
                   std::ssize(group.prompt) + std::ssize(sample.completion) <= model.max_positions;
        sample_of(sample).check_sequences();
      }
      TANDEM_ENV_CHECK(is_sound,
                       "a sample of it has no prompt, is longer than the context, or has an id that the model "
                       "does not have");
    }
  }

  // Answers a question of the one who has waited longest since its last turn. Returns false if nobody asks.
  bool answer_next() {
    const auto next = std::ranges::find_if(askers_, [](const Asker& asker) { return !asker.questions.empty(); });
    if (next == askers_.end()) return false;
    askers_.splice(askers_.end(), askers_, next);
    if (!guarded(*next, [this](Asker& asker) { answer(asker); })) askers_.erase(next);
    for_each_asker([](Asker& asker) {
      if (!asker.questions.empty()) asker.channel->send(to_bytes(Alive{}));
    });
    return true;
  }

  void answer(Asker& asker) {
    const Score question = std::move(asker.questions.front());
    asker.questions.pop_front();
    std::vector<rl::Sample> samples;
    uint64_t group_id = 0;
    for (const AskedGroup& group : question.groups) {
      const rl::SharedPrompt prompt = rl::make_prompt(group.prompt);
      for (const AskedSample& asked : group.samples) {
        rl::Sample& sample = samples.emplace_back(sample_of(asked));
        sample.prompt = prompt;
        sample.group_id = group_id;
        sample.sample_id = samples.size();
      }
      ++group_id;
    }
    std::vector<const rl::Sample*> views;
    views.reserve(samples.size());
    for (const rl::Sample& sample : samples) views.push_back(&sample);
    Scored answer{trainer::score(*model_, views, batch_, question.temperature).logprobs};
    asker.num_samples += std::ssize(samples);
    num_samples_ += std::ssize(samples);
    asker.channel->send(to_bytes(answer));
  }

  void wait_for_news() const {
    std::vector<pollfd> polled;
    for (const int descriptor : listener_.descriptors()) polled.push_back({descriptor, POLLIN, 0});
    for (const Asker& asker : askers_) polled.push_back({asker.channel->descriptor(), POLLIN, 0});
    poll(polled.data(), polled.size(), kLookEveryMs);
  }

  const trainer::BatchConfig batch_;
  session::ModelSession& session_;
  const std::string weights_checksum_;
  mesh::ChannelListener& listener_;
  const std::unique_ptr<model::Model> model_;
  std::list<Asker> askers_;  // the one that was answered last is the last
  int64_t num_samples_ = 0;
};

}  // namespace

int serve_scores(const config::ScorerConfig& config, const config::RunMode& mode) {
  const Address address = address_of(config.listen, "--listen");
  std::string secret = own_secret();
  check_guarded(address, !secret.empty(), config.trust_network, "--listen");
  session::ModelSession session(config.model);
  session.check_weights();
  if (mode.dry_run) {
    report::Report().print_result(fmt::format("it would score with {} at {}; nothing was loaded (--dry-run)",
                                              config.model.hf_checkpoint, config.listen));
    return 0;
  }
  mesh::ChannelListener listener(address.local_name(), door_of(address, std::move(secret)), kPatience,
                                 "is a tandem scorer with this --listen running already?", "--listen " + config.listen);
  // Both read the files at the same time, so that the second reader finds them in the page cache.
  std::future<std::string> checksum =
      std::async(std::launch::async, [&] { return checksum_of(config.model, session); });
  session.load_weights();
  Scorer scorer(config, session, checksum.get(), listener);
  session::defer_stops("stopping: the samples at hand are scored (a second signal ends it at once)");
  base::log_info("scores at {}: {} in {} on {}; runs ask with --opd-teacher-address {}", config.listen,
                 config.model.hf_checkpoint, session.config().dtype_name(), session.ops().name(),
                 asked_at(config.listen));
  scorer.serve_until_stopped();
  report::Report().print_result(fmt::format("{} scored", base::counted(scorer.num_samples(), "sample")));
  return 0;
}

}  // namespace tandem::scorer
