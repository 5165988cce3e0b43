#include "reward/call_queue.h"

#include <utility>

#include "base/log.h"

namespace tandem::reward {

void CallQueue::add(std::vector<GradeRequest> group, bool as_one_call) {
  if (group.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    num_pending_ += group.size();
    if (as_one_call) {
      calls_.push_back({.samples = std::move(group), .generation = generation_, .begun = {}});
    } else {
      for (GradeRequest& sample : group) {
        Call call{.samples = {}, .generation = generation_, .begun = {}};
        call.samples.push_back(std::move(sample));
        calls_.push_back(std::move(call));
      }
    }
  }
  changed_.notify_all();
}

std::optional<Call> CallQueue::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopped_ || !calls_.empty(); });
  if (stopped_) return std::nullopt;
  Call call = std::move(calls_.front());
  calls_.pop_front();
  return call;
}

std::optional<Call> CallQueue::next_beside_others() {
  const std::lock_guard lock(mutex_);
  if (stopped_ || calls_.empty() || calls_.front().alone) return std::nullopt;
  Call call = std::move(calls_.front());
  calls_.pop_front();
  return call;
}

size_t CallQueue::num_waiting() const {
  const std::lock_guard lock(mutex_);
  return calls_.size();
}

void CallQueue::store(const Call& call, std::vector<Grade> grades) {
  std::vector<std::string> news;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_ || call.generation != generation_) return;
    num_pending_ -= grades.size();
    for (size_t i = 0; i < grades.size(); ++i) {
      Grade& grade = grades[i];
      // Lines that fail with every response are refused when the run starts.
      const bool is_news = grade.reason_class != expected_ && grade.reason_class != "line";
      if (grade.failed && ++num_failures_[grade.reason_class] == 1 && is_news) {
        const std::string& name = call.samples[i].shown_as;
        news.push_back(fmt::format("{} of {} failed ({}): {}", what_,
                                   name.empty() ? fmt::format("sample {}", grade.sample_id) : name, grade.reason_class,
                                   grade.reason));
      }
      finished_.push_back(std::move(grade));
    }
    bell_.ring();
  }
  for (const std::string& line : news) base::log_warning("{}", line);
  changed_.notify_all();
}

void CallQueue::repeat(std::vector<Call> calls, const std::string& why) {
  bool is_news = false;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    std::erase_if(calls, [this](const Call& call) { return call.generation != generation_; });
    if (calls.empty()) return;
    is_news = num_repeated_ == 0;
    for (auto call = calls.rbegin(); call != calls.rend(); ++call) {
      num_repeated_ += static_cast<int64_t>(call->samples.size());
      call->alone = true;
      calls_.push_front(std::move(*call));
    }
  }
  if (is_news) {
    base::log_warning(
        "the grader was lost while several calls of the reward were running in it; each of the {} is made again, "
        "alone, and so in later cases: {}",
        calls.size(), why);
  }
  changed_.notify_all();
}

void CallQueue::fail(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    if (error_ == nullptr) error_ = std::move(error);
    bell_.ring();
  }
  changed_.notify_all();
}

void CallQueue::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
}

std::vector<Grade> CallQueue::take_finished(double seconds) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                    [&] { return !finished_.empty() || num_pending_ == 0 || error_ != nullptr; });
  if (error_ != nullptr) std::rethrow_exception(error_);
  bell_.silence();
  return std::exchange(finished_, {});
}

void CallQueue::discard() {
  const std::lock_guard lock(mutex_);
  ++generation_;
  calls_.clear();
  finished_.clear();
  bell_.silence();
  num_pending_ = 0;
}

std::map<std::string, int64_t> CallQueue::failures() const {
  const std::lock_guard lock(mutex_);
  return num_failures_;
}

int64_t CallQueue::repeated() const {
  const std::lock_guard lock(mutex_);
  return num_repeated_;
}

}  // namespace tandem::reward
