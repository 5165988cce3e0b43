// text/message: whatever a worker process sends is a result, a fault on one line, or nonsense; a reply is whole at one
// length only, however it comes in pieces. An input that begins with 'r' is what came, raw; of any other, the rest is
// the JSON of a reply and gets its length in front.
#include "text/message.h"

#include "tests/fuzz/target.h"

using namespace tandem::fuzz;
using namespace tandem::text;

namespace {

constexpr uint64_t kId = 7;

void check_arrival(std::string_view bytes) {
  const Arrival all = arrival_of(bytes);
  for (const size_t num_cut : {size_t{1}, size_t{2}, bytes.size() / 2}) {
    if (num_cut == 0 || num_cut > bytes.size()) continue;
    const Arrival piece = arrival_of(bytes.substr(0, bytes.size() - num_cut));
    require(piece == Arrival::kPartial || all == Arrival::kNonsense, "only nonsense is whole before its end");
  }
}

void check_result(std::string_view reply) {
  try {
    const tandem::base::Json result = result_of(reply, kId);
    // What was accepted can be sent: it goes into a request and comes out of it as it was.
    const std::string request = framed_request(kId, "echo", result);
    require(arrival_of(request) == Arrival::kWhole, "a request is one whole message");
    const auto again = tandem::base::parse_json(std::string_view(request).substr(4), "request");
    require(again.at("arguments") == result, "a request holds its arguments", request);
  } catch (const tandem::UserError& fault) {
    require_message(fault.what(), "");
  } catch (const tandem::EnvironmentError& fault) {
    require_message(fault.what(), "");
  } catch (const BadReply& bad) {
    require_message(bad.what(), "answered ");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string bytes(text_of(data, size).substr(1));
  if (data[0] != 'r') {
    const auto length = static_cast<uint32_t>(bytes.size());
    bytes.insert(0, reinterpret_cast<const char*>(&length), sizeof length);
  }
  const std::vector<char> exact(bytes.begin(), bytes.end());
  const std::string_view arrived(exact.data(), exact.size());
  check_arrival(arrived);
  if (arrival_of(arrived) == Arrival::kWhole) check_result(arrived);
  return 0;
}
