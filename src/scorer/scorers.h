// The processes that score for one teacher, as the run sees them. Several share its samples: each is asked for a piece
// at a time, and gets the next one when it has answered. A sample's log-probs do not depend on who scores it. What a
// process had to score when it was lost is asked of another, or of the same one when it is there again. No torch.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "mesh/channel.h"
#include "mesh/channel_connector.h"
#include "rl/sample.h"
#include "scorer/address.h"
#include "scorer/messages.h"

namespace tandem::scorer {

class Scorers {
 public:
  struct Settings {
    std::vector<Address> addresses;  // at least one
    std::string flag;                // the flag that they come from, for messages
    std::string secret;              // ""; none
    double timeout_s = 600.0;        // --distributed-timeout-minutes
    Hello hello = {};
    // What the first process of this teacher has said of itself, once one has. The others must have its identity().
    std::optional<Welcome> known = {};
    std::function<bool()> is_asked_to_stop = [] { return false; };  // asked while nobody can score
    std::function<bool()> abandon = [] { return false; };  // asked all the time; true: the run has no time left
  };
  // Connects to all of them, and waits until each is there. Throws EnvironmentError if one is not within the timeout,
  // and UserError if it refuses this run, or has other weights or another dtype than the others.
  explicit Scorers(Settings settings);

  // Returns the log-probs of the completions' tokens, [sample][token], in the order of `samples`, at this temperature.
  // Returns nullopt if the run was asked to stop while nobody could score, or is to abandon what it does. Throws
  // EnvironmentError if nobody has scored for as long as the timeout.
  std::optional<std::vector<std::vector<float>>> score(const std::vector<const rl::Sample*>& samples,
                                                       double temperature);

  const Welcome& model() const { return *model_; }
  // Returns how often a process was lost since the last call.
  int64_t take_num_lost();

 private:
  struct Link {
    Address address;
    std::unique_ptr<mesh::Channel> channel = nullptr;             // null: nobody is there, or not yet
    std::unique_ptr<mesh::ChannelConnector> connector = nullptr;  // what makes the channel, over a network
    bool is_ready = false;                                        // it has said Welcome
    bool was_ready = false;                                       // it, or one before it, had said so once
    std::deque<size_t> asked = {};                                // pieces without an answer, in order
    std::string why_gone = "nobody listens there";
    std::optional<base::Clock::time_point> last_tried = {};
    base::Clock::time_point last_heard = {};
  };
  struct Work;

  // Looks for a process that is not there, takes what one has said, and asks it for more, without waiting: it may load
  // or compute for minutes, and others score meanwhile. Returns whether anything has come of it.
  bool exchange(Link& link, Work& work);
  bool look_for(Link& link) const;
  bool begin_to_connect(Link& link) const;
  bool take_messages(Link& link, Work& work);
  void take(Link& link, const Welcome& welcome);
  static void ask(Link& link, Work& work);
  void lose(Link& link, Work& work, const std::string& why);
  void leave();
  void wait_for_news() const;
  bool is_any_ready() const;
  std::string who_is_missing() const;

  const Settings settings_;
  std::deque<Link> links_;
  std::optional<Welcome> model_;
  int64_t num_lost_ = 0;
};

}  // namespace tandem::scorer
