// text/tokenizer_messages, text/parquet_file: whatever a tokenizer process or the reader of a Parquet file answers is a
// value within its bounds, or a BadReply. The first byte says which request was answered, the second how many results
// were asked for, the rest is the answer.
#include "text/tokenizer_messages.h"

#include <algorithm>

#include "tests/fuzz/json_mutator.h"
#include "text/parquet_file.h"
#include "worker/message.h"

using namespace tandem::fuzz;
using namespace tandem::text;
using namespace tandem::worker;
using tandem::base::Json;

namespace {

void check_answer(int request, int64_t count, const Json& answer) {
  switch (request) {
    case 0: {
      const TokenizerFacts facts = tokenizer_facts(answer);
      require(facts.vocab_size >= 0 && facts.vocab_size <= kMaxTokenizerIds, "a vocabulary has bounds");
      require(facts.is_special.size() == static_cast<size_t>(facts.vocab_size), "each id is special or not");
      require(facts.template_path.find('\n') == std::string::npos, "a path is one line");
      return;
    }
    case 1: {
      const auto ids = token_ids(answer, static_cast<size_t>(count), 300);
      require(ids.size() == static_cast<size_t>(count), "each text has its ids");
      for (const auto& one : ids) {
        require(std::all_of(one.begin(), one.end(), [](int32_t id) { return id >= 0 && id < 300; }), "ids are known");
      }
      return;
    }
    case 2:
      require(texts(answer, static_cast<size_t>(count)).size() == static_cast<size_t>(count), "a text for each");
      return;
    case 3: {
      const auto table = token_table(answer, count);
      require(table.size() == static_cast<size_t>(count), "each id has its bytes");
      for (size_t i = 0; i < table.size(); ++i) {
        require(answer[i].get_ref<const std::string&>().size() == 2 * table[i].size(), "two digits a byte");
      }
      return;
    }
    case 4: require(parquet_row_count(answer) >= 0, "a file has rows or none"); return;
    default:
      for (const ParquetRow& row : parquet_rows(answer, count)) {
        require(row.json.empty() || row.wrong.empty(), "a row is good or bad");
      }
      return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  Json answer;
  if (!accepts([&] { answer = tandem::base::parse_json(text_of(data + 2, size - 2), "answer"); },
               [](std::string_view) {})) {
    return 0;
  }
  // Mostly as many as there are, so that what is behind the count is reached.
  const int64_t count = data[1] >= 128 ? data[1] - 128 : static_cast<int64_t>(answer.size());
  try {
    check_answer(data[0] % 6, count, answer);
  } catch (const BadReply& bad) {
    require_message(bad.what(), "answered ");
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return mutate_json(data, size, max_size, seed, /*num_prefix=*/2);
}
