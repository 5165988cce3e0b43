#include "text/text_worker.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "text/tokenizer_messages.h"
#include "worker/message.h"
#include "worker/worker.h"

namespace tandem::text {
namespace {

// A request stays far below its deadline and the limit of one message: longer work is done in pieces of this size.
constexpr size_t kMaxRequestBytes = size_t{1} << 20;

// Returns the ends of runs of items whose sizes add up to at most kMaxRequestBytes (one item may be larger).
template <typename Size>
std::vector<size_t> piece_ends(size_t num_items, Size size_of) {
  std::vector<size_t> ends;
  size_t bytes = 0;
  for (size_t i = 0; i < num_items; ++i) {
    const size_t item_bytes = size_of(i);
    if (bytes > 0 && bytes + item_bytes > kMaxRequestBytes) {
      ends.push_back(i);
      bytes = 0;
    }
    bytes += item_bytes + 1;
  }
  if (num_items > 0) ends.push_back(num_items);
  return ends;
}

template <typename Result>
void append(std::vector<Result>& results, std::vector<Result> more) {
  std::move(more.begin(), more.end(), std::back_inserter(results));
}

}  // namespace

struct TextWorker::Impl {
  const worker::WorkerConfig config;
  const std::string directory;
  TokenizerFacts facts;
  std::vector<std::string> token_bytes;  // by id; empty until asked for
  worker::Worker worker{{.make = [this] { return std::make_unique<worker::ChildProcess>(config, "tokenizer"); },
                         .load = [this](worker::ChildProcess& child) { load(child); }}};

  Impl(const worker::WorkerConfig& worker_config, const std::string& model_directory)
      : config(worker_config), directory(model_directory) {}

  void load(worker::ChildProcess& child) {
    const base::Json answer = child.call("load", {{"directory", directory}}, config.deadline_s);
    try {
      facts = tokenizer_facts(answer);
    } catch (const worker::BadReply& bad) {
      throw error_of(bad);
    }
  }

  // Sends a request to the process, which is started first where there is none, and returns what `read`
  // (text/tokenizer_messages.h) makes of the answer.
  template <typename Read>
  auto call(std::string_view name, const base::Json& arguments, Read read) {
    if (worker.has_process() && !worker.alive()) {
      base::log_warning("the tokenizer worker (process {}) died between calls; a new one takes over",
                        worker.process_id());
      worker.drop();
    }
    if (!worker.has_process()) worker.start();
    const base::Json answer = worker.call(name, arguments, config.deadline_s);
    try {
      return read(answer);
    } catch (const worker::BadReply& bad) {
      worker.drop();
      throw error_of(bad);
    }
  }

  static worker::WorkerError error_of(const worker::BadReply& bad) {
    return worker::WorkerError(std::string("tokenizer worker ") + bad.what());
  }
};

TextWorker::TextWorker(const worker::WorkerConfig& config, const std::string& model_directory)
    : impl_(std::make_unique<Impl>(config, model_directory)) {
  try {
    impl_->worker.start();
  } catch (const worker::WorkerError& error) {
    throw EnvironmentError(std::string("cannot start the tokenizer: ") + error.what());
  }
}

TextWorker::~TextWorker() = default;

std::vector<std::vector<int32_t>> TextWorker::encode(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    TANDEM_USER_CHECK(text.size() <= kMaxTextBytes, "a text has", text.size(), "bytes, more than the", kMaxTextBytes,
                      "that a text may have; shorten it");
  }
  std::vector<std::vector<int32_t>> ids;
  ids.reserve(texts.size());
  for (const size_t end : piece_ends(texts.size(), [&](size_t i) { return texts[i].size(); })) {
    base::Json piece = base::Json::array();
    for (size_t i = ids.size(); i < end; ++i) piece.push_back(texts[i]);
    append(ids, impl_->call("encode", {{"texts", piece}}, [&](const base::Json& answer) {
      return token_ids(answer, piece.size(), impl_->facts.vocab_size);
    }));
  }
  return ids;
}

std::vector<std::string> TextWorker::decode(const std::vector<std::vector<int32_t>>& ids, bool skip_special_tokens) {
  std::vector<std::string> decoded;
  decoded.reserve(ids.size());
  for (const size_t end : piece_ends(ids.size(), [&](size_t i) { return 7 * ids[i].size(); })) {
    base::Json piece = base::Json::array();
    for (size_t i = decoded.size(); i < end; ++i) {
      TANDEM_CHECK(std::all_of(ids[i].begin(), ids[i].end(), [](int32_t id) { return id >= 0; }),
                   "a negative token id");
      piece.push_back(ids[i]);
    }
    append(decoded, impl_->call("decode", {{"ids", piece}, {"skip_special_tokens", skip_special_tokens}},
                                [&](const base::Json& answer) { return texts(answer, piece.size()); }));
  }
  return decoded;
}

std::vector<std::string> TextWorker::apply_chat_template(const std::vector<base::Json>& conversations,
                                                         const base::Json& kwargs) {
  constexpr size_t kPiece = 256;  // the most conversations of one request
  const base::Json variables = kwargs.is_null() ? base::Json::object() : kwargs;
  TANDEM_USER_CHECK(variables.is_object(), "chat template arguments: write them as a JSON object, not",
                    variables.type_name());
  std::vector<std::string> rendered;
  while (rendered.size() < conversations.size()) {
    base::Json piece = base::Json::array();
    for (size_t i = rendered.size(); i < std::min(conversations.size(), rendered.size() + kPiece); ++i) {
      piece.push_back(conversations[i]);
    }
    try {
      append(rendered, impl_->call("apply_chat_template",
                                   {{"conversations", piece}, {"kwargs", variables}, {"first", rendered.size()}},
                                   [&](const base::Json& answer) { return texts(answer, piece.size()); }));
    } catch (const worker::ChildLost& lost) {
      // The template ran in C code that its own alarm cannot interrupt.
      TANDEM_USER_CHECK(lost.cause() != worker::LossCause::kDeadline,
                        impl_->facts.template_path + ": the chat template did not end in", impl_->config.deadline_s,
                        "s for conversations from", rendered.size(), "on; use another template");
      throw;
    }
  }
  return rendered;
}

bool TextWorker::takes_template_arguments(const base::Json& kwargs) {
  try {
    impl_->call("apply_chat_template", {{"conversations", base::Json::array()}, {"kwargs", kwargs}, {"first", 0}},
                [](const base::Json& answer) { return texts(answer, 0); });
    return true;
  } catch (const UserError&) {
    return false;
  }
}

int64_t TextWorker::vocab_size() const { return impl_->facts.vocab_size; }

const std::vector<std::string>& TextWorker::token_bytes() {
  if (impl_->token_bytes.empty() && impl_->facts.vocab_size > 0) {
    impl_->token_bytes = impl_->call("token_bytes", base::Json::object(), [&](const base::Json& answer) {
      return token_table(answer, impl_->facts.vocab_size);
    });
  }
  return impl_->token_bytes;
}

bool TextWorker::is_special(int32_t id) const {
  const auto index = static_cast<size_t>(id);
  return id >= 0 && index < impl_->facts.is_special.size() && impl_->facts.is_special[index];
}

std::optional<int32_t> TextWorker::eos_id() const { return impl_->facts.eos_id; }
bool TextWorker::has_chat_template() const { return impl_->facts.has_chat_template; }
const std::vector<int32_t>& TextWorker::text_prefix() const { return impl_->facts.text_prefix; }
int64_t TextWorker::restarts() const { return impl_->worker.restarts(); }
int64_t TextWorker::process_id() const { return impl_->worker.process_id(); }

}  // namespace tandem::text
