#include "scorer/scorers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "rl/packing.h"

namespace tandem::scorer {

using base::Clock;
using base::seconds_since;

namespace {

constexpr int kLookEveryMs = 100;
constexpr double kTryEvery = 0.5;  // seconds between two looks for a process that is not there
constexpr double kSayAfter = 5.0;  // seconds; a process that starts at the same time has come by then

// Returns the samples of a piece, by their prompts.
Score question_of(const std::vector<const rl::Sample*>& samples, const std::vector<int64_t>& piece,
                  double temperature) {
  Score score{.temperature = temperature, .groups = {}};
  const rl::Sample* last = nullptr;
  for (const int64_t index : piece) {
    const rl::Sample& sample = *samples[static_cast<size_t>(index)];
    if (last == nullptr || !rl::share_prompt(*last, sample))
      score.groups.push_back({.prompt = sample.prompt->tokens, .samples = {}});
    score.groups.back().samples.push_back({sample.completion, sample.sequence_begins});
    last = &sample;
  }
  return score;
}

// Says once that it takes long.
class Patience {
 public:
  explicit Patience(double timeout_s) : timeout_s_(timeout_s) {}
  void look(const std::string& who_is_missing) {
    if (!is_said_ && seconds_since(begin_) > kSayAfter) {
      is_said_ = true;
      base::log_info("{}; waiting until it is there", who_is_missing);
    }
    TANDEM_ENV_CHECK(seconds_since(begin_) < timeout_s_,
                     fmt::format("{}; start `tandem scorer` there (waited for {:g} s, --distributed-timeout-minutes)",
                                 who_is_missing, timeout_s_));
  }
  void begin_anew() {
    begin_ = Clock::now();
    is_said_ = false;
  }

 private:
  const double timeout_s_;
  Clock::time_point begin_ = Clock::now();
  bool is_said_ = false;
};

}  // namespace

struct Scorers::Work {
  const std::vector<const rl::Sample*>& samples;
  double temperature = 1.0;
  std::vector<rl::MicroBatch> pieces = {};
  std::deque<size_t> waiting = {};  // pieces that nobody was asked for
  size_t num_answered = 0;
  std::vector<std::vector<float>> logprobs = {};  // by sample

  void take(size_t piece, Scored& answer) {
    const std::vector<int64_t>& own = pieces[piece].samples;
    bool fits = answer.logprobs.size() == own.size();
    for (size_t i = 0; fits && i < own.size(); ++i) {
      const auto index = static_cast<size_t>(own[i]);
      fits = answer.logprobs[i].size() == samples[index]->completion.size();
      if (fits) logprobs[index] = std::move(answer.logprobs[i]);
    }
    TANDEM_ENV_CHECK(fits, "a process that scores has answered another question");
    ++num_answered;
  }
};

Scorers::Scorers(Settings settings) : settings_(std::move(settings)) {
  for (const Address& address : settings_.addresses) links_.push_back({.address = address});
  const std::vector<const rl::Sample*> none;
  Work nothing{.samples = none};
  Patience patience(settings_.timeout_s);
  while (!std::ranges::all_of(links_, &Link::is_ready)) {
    bool has_come = false;
    for (Link& link : links_) has_come = exchange(link, nothing) || has_come;
    if (has_come) continue;
    patience.look(who_is_missing());
    wait_for_news();
  }
}

std::optional<std::vector<std::vector<float>>> Scorers::score(const std::vector<const rl::Sample*>& samples,
                                                              double temperature) {
  Work work{.samples = samples,
            .temperature = temperature,
            .pieces = rl::split_into_micro_batches(samples, {.max_tokens = model_->max_tokens})};
  work.logprobs.resize(samples.size());
  for (size_t piece = 0; piece < work.pieces.size(); ++piece) work.waiting.push_back(piece);
  Patience patience(settings_.timeout_s);
  while (work.num_answered < work.pieces.size()) {
    if (settings_.abandon()) {
      leave();
      return std::nullopt;
    }
    bool has_come = false;
    for (Link& link : links_) has_come = exchange(link, work) || has_come;
    if (has_come) continue;
    if (is_any_ready()) {
      patience.begin_anew();
    } else {
      if (settings_.is_asked_to_stop()) return std::nullopt;
      patience.look(who_is_missing());
    }
    wait_for_news();
  }
  return std::move(work.logprobs);
}

int64_t Scorers::take_num_lost() { return std::exchange(num_lost_, 0); }

bool Scorers::exchange(Link& link, Work& work) {
  try {
    if (!link.channel && !look_for(link)) return false;
    const bool has_come = take_messages(link, work);
    link.channel->send_rest();
    if (link.is_ready) ask(link, work);
    const bool is_awaited = !link.is_ready || !link.asked.empty();
    if (is_awaited && seconds_since(link.last_heard) > settings_.timeout_s)
      throw mesh::ChannelClosed(
          fmt::format("it has said nothing for {:g} s (--distributed-timeout-minutes)", settings_.timeout_s));
    return has_come;
  } catch (const mesh::SecretDiffers& error) {
    // A process that takes the place of one that scored, with another secret, is no reason to end the run.
    if (!link.was_ready) throw UserError(fmt::format("{} {}: {}", settings_.flag, link.address.text, error.what()));
    lose(link, work, error.what());
    return false;
  } catch (const mesh::ChannelClosed& error) {
    lose(link, work, error.what());
    return false;
  }
}

bool Scorers::look_for(Link& link) const {
  if (!link.connector) {
    if (link.last_tried && seconds_since(*link.last_tried) < kTryEvery) return false;
    link.last_tried = Clock::now();
    link.channel = connect_here(link.address, settings_.timeout_s);
    if (!link.channel && !begin_to_connect(link)) return false;
  }
  try {
    if (link.connector) link.channel = link.connector->advance();
  } catch (const mesh::NobodyListens&) {
    link.connector.reset();
  }
  if (!link.channel) return false;
  link.connector.reset();
  link.last_heard = Clock::now();
  link.channel->send(to_bytes(settings_.hello));
  return true;
}

// Returns false where the name of the machine has no address now: one that is started again may be without for a while.
bool Scorers::begin_to_connect(Link& link) const {
  try {
    link.connector = connect_there(link.address, settings_.secret, settings_.timeout_s);
    return true;
  } catch (const EnvironmentError& error) {
    link.why_gone = error.what();
  } catch (const UserError& error) {
    if (!link.was_ready) throw;
    link.why_gone = error.what();
  }
  return false;
}

bool Scorers::take_messages(Link& link, Work& work) {
  bool has_come = false;
  while (const std::optional<std::string> frame = link.channel->receive(0.0)) {
    has_come = true;
    link.last_heard = Clock::now();
    Message message = message_of(*frame);
    if (const auto* const refused = std::get_if<Refused>(&message))
      throw UserError(fmt::format("{} {}: {}", settings_.flag, link.address.text, refused->why));
    if (const auto* const welcome = std::get_if<Welcome>(&message)) {
      take(link, *welcome);
    } else if (auto* const scored = std::get_if<Scored>(&message)) {
      TANDEM_ENV_CHECK(!link.asked.empty(), "a process that scores has answered what nobody asked");
      work.take(link.asked.front(), *scored);
      link.asked.pop_front();
    }
  }
  return has_come;
}

void Scorers::take(Link& link, const Welcome& welcome) {
  TANDEM_ENV_CHECK(welcome.max_tokens > 0, "a process that scores takes no token");
  if (!model_) model_ = welcome;
  const Welcome& known = settings_.known ? *settings_.known : *model_;
  TANDEM_USER_CHECK(
      known.identity() == welcome.identity(),
      fmt::format("{} {}: has {} (weights {}), and another process of this teacher, or the one before it, {} (weights "
                  "{}); give all processes of a teacher the same model and --dtype",
                  settings_.flag, link.address.text, welcome.model, welcome.identity(), known.model, known.identity()));
  link.is_ready = link.was_ready = true;
}

void Scorers::ask(Link& link, Work& work) {
  while (link.asked.size() < kPiecesAhead && !work.waiting.empty()) {
    if (link.asked.empty()) link.last_heard = Clock::now();  // it had nothing to say until now
    const size_t piece = work.waiting.front();
    work.waiting.pop_front();
    link.asked.push_back(piece);  // before it is sent: a loss gives it back
    link.channel->send_without_waiting(
        to_bytes(question_of(work.samples, work.pieces[piece].samples, work.temperature)));
  }
}

void Scorers::lose(Link& link, Work& work, const std::string& why) {
  const bool was_there = std::exchange(link.is_ready, false);
  link.channel.reset();
  link.connector.reset();
  link.why_gone = why;
  work.waiting.insert(work.waiting.begin(), link.asked.begin(), link.asked.end());
  link.asked.clear();
  if (!was_there) return;
  ++num_lost_;
  base::log_warning("{} {}: the process that scores is lost: {}; {}", settings_.flag, link.address.text, why,
                    is_any_ready() ? "the others score its samples" : "the run waits for it");
}

// Leaves all processes: an answer to what was asked would be taken for one to a later question.
void Scorers::leave() {
  for (Link& link : links_) {
    link.channel.reset();
    link.asked.clear();
    link.is_ready = false;
  }
}

void Scorers::wait_for_news() const {
  std::vector<pollfd> polled;
  for (const Link& link : links_) {
    if (link.channel) {
      const int16_t events = link.channel->has_rest() ? POLLIN | POLLOUT : POLLIN;
      polled.push_back({link.channel->descriptor(), events, 0});
    } else if (link.connector) {
      polled.push_back(link.connector->awaited());
    }
  }
  poll(polled.data(), polled.size(), kLookEveryMs);
}

bool Scorers::is_any_ready() const { return std::ranges::any_of(links_, &Link::is_ready); }

std::string Scorers::who_is_missing() const {
  std::vector<std::string> missing;
  for (const Link& link : links_) {
    if (!link.is_ready)
      missing.push_back(fmt::format("{} ({})", link.address.text,
                                    link.channel || link.connector ? "it has not answered yet" : link.why_gone));
  }
  return fmt::format("{}: no process scores at {}", settings_.flag, fmt::join(missing, ", "));
}

}  // namespace tandem::scorer
