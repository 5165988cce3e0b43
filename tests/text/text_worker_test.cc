// The tokenizer worker beyond the golden cases: dead, hung and babbling children, refused input, sandboxed templates.
#include "text/text_worker.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/utf8_stream.h"
#include "tandem/error.h"
#include "tests/base/thrown.h"
#include "tests/worker/process_facts.h"

namespace tandem::text {
namespace {

const char* const kModel = "tests/golden/tokenizer_small";

worker::WorkerConfig strange_worker() {
  worker::WorkerConfig config = worker::default_worker_config();
  config.worker_directory = "tests/worker/strange_worker";
  return config;
}

void kill_and_wait(int64_t pid) {
  const int process = static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0));
  ASSERT_EQ(::kill(static_cast<pid_t>(pid), SIGKILL), 0);
  pollfd polled = {process, POLLIN, 0};
  EXPECT_EQ(::poll(&polled, 1, 20'000), 1);  // all of its threads have ended; who reaps it is another process
  ::close(process);
}

// A model directory of our own has the small tokenizer and what a test puts beside it.
class ModelDirectory {
 public:
  ModelDirectory() : path_(testing::TempDir() + "text_worker_" + std::to_string(::getpid())) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
    std::filesystem::copy(std::string(kModel) + "/tokenizer.json", path_ + "/tokenizer.json");
  }
  ~ModelDirectory() { std::filesystem::remove_all(path_); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(path_ + "/" + name) << text; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string render(const ModelDirectory& model, const base::Json& kwargs = {}) {
  TextWorker worker(worker::default_worker_config(), model.path());
  return worker.apply_chat_template({base::Json::parse(R"([{"role": "user", "content": "hi"}])")}, kwargs)[0];
}

TEST(TextWorker, TellsWhatTheTokenizerHolds) {
  TextWorker worker(worker::default_worker_config(), kModel);
  EXPECT_EQ(worker.vocab_size(), 484);
  const std::vector<std::string>& bytes = worker.token_bytes();
  ASSERT_EQ(bytes.size(), 484U);
  EXPECT_EQ(bytes[473], "<|im_end|>");
  EXPECT_EQ(bytes[201], "\r");
  EXPECT_EQ(bytes[160], "\xE4");
}

TEST(TextWorker, BytesOfTokensJoinToWhatTheLibraryDecodes) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  TextWorker worker(worker::default_worker_config(), kModel);
  std::vector<std::vector<int32_t>> ids(300);
  for (auto& list : ids) {
    list.resize(random() % 40);
    for (int32_t& id : list) id = static_cast<int32_t>(random() % 500);  // 484 tokens: some ids have none
  }
  const std::vector<std::string>& bytes = worker.token_bytes();
  for (const bool skip : {false, true}) {
    const std::vector<std::string> decoded = worker.decode(ids, skip);
    for (size_t i = 0; i < ids.size(); ++i) {
      base::Utf8Stream characters;
      std::string text;
      for (const int32_t id : ids[i]) {
        const bool is_left_out = static_cast<size_t>(id) >= bytes.size() || (skip && worker.is_special(id));
        if (!is_left_out) text += characters.push(bytes[static_cast<size_t>(id)]);
      }
      ASSERT_EQ(text + characters.finish(), decoded[i]);
    }
  }
}

TEST(TextWorker, TakesMoreTextThanOneRequestHolds) {
  TextWorker worker(worker::default_worker_config(), kModel);
  std::string words;
  while (words.size() < 100000) words += "and the ";
  std::vector<std::string> texts(11, words);
  texts[7] = "b";
  const auto ids = worker.encode(texts);
  ASSERT_EQ(ids.size(), texts.size());
  EXPECT_EQ(ids[7].size(), 1U);
  EXPECT_EQ(worker.decode(ids, false), texts);
}

// Tables of all ids are made here and in the worker: one id of four thousand million in a small file took gigabytes.
TEST(TextWorker, RefusesATokenizerOfHugeIds) {
  const ModelDirectory model;
  base::Json tokenizer = base::read_json_file(model.path() + "/tokenizer.json");
  tokenizer["model"]["vocab"]["!"] = 4000000000;
  model.write("tokenizer.json", tokenizer.dump());
  const std::string message = base::refusal_of([&] { TextWorker(worker::default_worker_config(), model.path()); });
  EXPECT_NE(message.find("tokenizer.json: holds the token id 4000000000"), std::string::npos) << message;
}

TEST(TextWorker, RefusesTextThatIsNotUtf8AndLivesOn) {
  TextWorker worker(worker::default_worker_config(), kModel);
  EXPECT_THROW(worker.encode({"\xFF"}), UserError);
  EXPECT_EQ(worker.encode({""})[0].size(), 0U);
  EXPECT_EQ(worker.restarts(), 0);
}

TEST(TextWorker, ReplacesAChildThatDiedBetweenCalls) {
  TextWorker worker(worker::default_worker_config(), kModel);
  const auto before = worker.encode({"and the"});
  const int64_t first = worker.process_id();
  kill_and_wait(first);
  EXPECT_EQ(worker.encode({"and the"}), before);
  EXPECT_EQ(worker.restarts(), 1);
  EXPECT_NE(worker.process_id(), first);
}

TEST(TextWorker, SaysThatACallLostItsChildAndGoesOn) {
  TextWorker worker(worker::default_worker_config(), kModel);
  const auto before = worker.encode({"and the"});
  const int64_t first = worker.process_id();
  // The call is in flight when its child is killed: a stopped child is let go by SIGKILL half a second later.
  ASSERT_EQ(::kill(static_cast<pid_t>(first), SIGSTOP), 0);
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    ::kill(static_cast<pid_t>(first), SIGKILL);
  });
  const std::string message = base::refusal_of<worker::WorkerError>([&] { worker.encode({"and the"}); });
  killer.join();
  EXPECT_NE(message.find("was killed by signal 9"), std::string::npos) << message;
  EXPECT_EQ(worker.process_id(), -1);
  EXPECT_EQ(worker.encode({"and the"}), before);
  EXPECT_EQ(worker.restarts(), 1);
}

TEST(TextWorker, EndsAChildThatPassesTheDeadline) {
  worker::WorkerConfig config = strange_worker();
  config.deadline_s = 4.0;  // also of the start
  TextWorker worker(config, kModel);
  const int64_t first = worker.process_id();
  ASSERT_EQ(::kill(static_cast<pid_t>(first), SIGSTOP), 0);
  const auto begin = std::chrono::steady_clock::now();
  const std::string message = base::refusal_of<worker::WorkerError>([&] { worker.encode({"fine"}); });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  EXPECT_NE(message.find("deadline of 4 s"), std::string::npos) << message;
  EXPECT_FALSE(worker::is_running(first));
  EXPECT_EQ(worker.encode({"fine"})[0], std::vector<int32_t>{0});
}

TEST(TextWorker, TakesNoNonsenseForAnAnswer) {
  TextWorker worker(strange_worker(), kModel);
  int64_t restarts = 0;
  for (const char* wish : {"no json", "other id", "no result", "wrong type", "wrong count", "too long", "trailing"}) {
    EXPECT_THROW(worker.encode({wish}), worker::WorkerError) << wish;
    EXPECT_EQ(worker.encode({"fine"})[0], std::vector<int32_t>{0}) << wish;
    EXPECT_EQ(worker.restarts(), ++restarts) << wish;
  }
  const std::string message = base::refusal_of<worker::WorkerError>([&] { worker.encode({"cut off"}); });
  EXPECT_NE(message.find("exited with code 7; its last line: the last words"), std::string::npos) << message;
}

// A vocabulary of -1 ids was a list of 2^64 - 1 bits: std::length_error, which is told as a bug in Tandem.
TEST(TextWorker, TakesNoNonsenseForATokenizer) {
  for (const char* size : {"-1", "18446744073709551615", "1e9", "null"}) {
    const std::string facts =
        std::string(R"({"vocab_size":)") + size + R"(,"has_chat_template":false,"byte_level":true,"special_ids":[]})";
    const std::string message = base::refusal_of<EnvironmentError>([&] { TextWorker worker(strange_worker(), facts); });
    EXPECT_NE(message.find("cannot start the tokenizer: tokenizer worker answered"), std::string::npos) << message;
  }
}

TEST(TextWorker, LeavesNoZombiesAndNoDescriptors) {
  const int descriptors = worker::num_descriptors();
  {
    TextWorker worker(strange_worker(), kModel);
    const int with_child = worker::num_descriptors();
    for (int round = 0; round < 50; ++round) {
      kill_and_wait(worker.process_id());
      worker.encode({"fine"});
    }
    EXPECT_EQ(worker.restarts(), 50);
    EXPECT_EQ(worker::num_descriptors(), with_child);
    EXPECT_EQ(worker::num_children(), 1);
  }
  EXPECT_EQ(worker::num_descriptors(), descriptors);
  EXPECT_EQ(worker::num_children(), 0);
}

TEST(TextWorker, SaysWhatIsWrongWithATokenizer) {
  ModelDirectory model;
  const auto start = [&] { TextWorker worker(worker::default_worker_config(), model.path()); };
  model.write("tokenizer.json", "{\"version\": \"1.0\", \"model\": {}}");
  EXPECT_NE(base::refusal_of(start).find("tokenizer.json"), std::string::npos);
  model.write("tokenizer.json", "{not json");
  EXPECT_NE(base::refusal_of(start).find("not JSON"), std::string::npos);
  std::filesystem::remove(model.path() + "/tokenizer.json");
  EXPECT_NE(base::refusal_of(start).find("no such file"), std::string::npos);
}

TEST(TextWorker, SaysWhatIsMissingOnThisMachine) {
  worker::WorkerConfig config = worker::default_worker_config();
  config.python = "/nowhere/python";
  EXPECT_NE(base::refusal_of<EnvironmentError>([&] { TextWorker(config, kModel); }).find("/nowhere/python"),
            std::string::npos);
  config = worker::default_worker_config();
  config.worker_directory = "/nowhere";
  EXPECT_NE(base::refusal_of<EnvironmentError>([&] { TextWorker(config, kModel); }).find("No module named"),
            std::string::npos);
}

TEST(ChatTemplate, MayLieInAFileOfItsOwn) {
  ModelDirectory model;
  model.write("tokenizer_config.json", R"({"chat_template": "from config", "eos_token": {"content": "<|im_end|>"}})");
  EXPECT_EQ(render(model), "from config");
  model.write("chat_template.jinja",
              "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}{{ "
              "eos_token }}");
  EXPECT_EQ(render(model), "hi<|im_end|>");
}

TEST(ChatTemplate, MayBeOneOfSeveral) {
  ModelDirectory model;
  model.write("tokenizer_config.json", R"({"chat_template": [{"name": "default", "template": "plain"},
                                           {"name": "tool_use", "template": "{{ tools | tojson }}"}]})");
  EXPECT_EQ(render(model), "plain");
  EXPECT_EQ(render(model, base::Json::parse(R"({"tools": [{"b": "é", "a": 1}]})")), R"([{"b": "é", "a": 1}])");
}

TEST(ChatTemplate, MayLieInTheFolderOfTransformers) {
  ModelDirectory model;
  std::filesystem::create_directories(model.path() + "/additional_chat_templates");
  model.write("chat_template.jinja", "plain");
  model.write("additional_chat_templates/tool_use.jinja", "{{ tools | tojson }}");
  EXPECT_EQ(render(model), "plain");
  EXPECT_EQ(render(model, base::Json::parse(R"({"tools": [{"a": 1}]})")), R"([{"a": 1}])");
}

TEST(ChatTemplate, SaysWhetherItCouldRenderAnythingWithItsArguments) {
  ModelDirectory model;
  const auto takes = [&](const std::string& arguments) {
    TextWorker worker(worker::default_worker_config(), model.path());
    return worker.takes_template_arguments(base::Json::parse(arguments));
  };
  EXPECT_FALSE(takes("{}")) << "there is no template";
  model.write("chat_template.jinja", "{% no template");
  EXPECT_FALSE(takes("{}"));
  model.write("chat_template.jinja", "{{ raise_exception('no') }}");
  EXPECT_TRUE(takes("{}")) << "a conversation is at fault";
  EXPECT_FALSE(takes(R"({"add_generation_prompt": true, "continue_final_message": true})"));
}

TEST(TextWorker, RefusesATextThatWouldEndIt) {
  TextWorker worker(worker::default_worker_config(), kModel);
  const int64_t pid = worker.process_id();
  const std::string message = base::refusal_of([&] { worker.encode({"and", std::string(kMaxTextBytes + 1, 'a')}); });
  EXPECT_EQ(message, "a text has 8388609 bytes, more than the 8388608 that a text may have; shorten it");
  EXPECT_FALSE(worker.encode({"and"})[0].empty());
  EXPECT_EQ(worker.process_id(), pid);
}

TEST(ChatTemplate, RunsInASandbox) {
  ModelDirectory model;
  for (const char* escape :
       {"{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.getpid() }}", "{{ ('%s'|attr('format'))|attr('__globals__') }}{{ x.y }}",
        "{{ raise_exception.__globals__['json'] }}"}) {
    model.write("chat_template.jinja", escape);
    const std::string message = base::refusal_of([&] { render(model); });
    EXPECT_NE(message.find("conversation 0"), std::string::npos) << message;
  }
}

TEST(ChatTemplate, IsBoundedInTimeAndMemory) {
  struct Bomb {
    const char* text;
    const char* said;
  };
  const std::vector<Bomb> bombs = {
      {"{{ 'x' * 4000000000 }}", "too large"},
      {"{{ messages * 4000000000 }}", "too large"},
      {"{{ 9 ** 9 ** 9 ** 9 ** 9 }}", "too large"},
      {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "longer than 5 s"},
      {"{% for a in range(99999) %}{% for b in range(99999) %}0123456789{% endfor %}{% endfor %}", "characters"},
      {"{% set n = namespace(t='0123456789') %}{% for a in range(99) %}{% set n.t = n.t ~ n.t %}{% endfor %}{{ n.t }}",
       "more memory"},
      {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "too deeply"},
      {"{{ range(9999999999) | list }}", "Range too big"},
      {"{{ 'x' | center(4000000000) }}", "too large"},
  };
  ModelDirectory model;
  worker::WorkerConfig config = worker::default_worker_config();
  config.memory_bytes = int64_t{1} << 30;
  for (const Bomb& bomb : bombs) {
    model.write("chat_template.jinja", bomb.text);
    const std::string message = base::refusal_of([&] {
      TextWorker worker(config, model.path());
      const int64_t pid = worker.process_id();
      try {
        worker.apply_chat_template({base::Json::array({"a", "b"})}, {});
      } catch (const UserError&) {
        EXPECT_EQ(worker.encode({""})[0].size(), 0U) << bomb.text;
        EXPECT_EQ(worker.process_id(), pid) << bomb.text;
        throw;
      }
    });
    EXPECT_NE(message.find("chat_template.jinja: "), std::string::npos) << message;
    EXPECT_NE(message.find(bomb.said), std::string::npos) << bomb.text << ": " << message;
  }
  model.write("chat_template.jinja", "{{ " + std::string(100000, '(') + "1" + std::string(100000, ')') + " }}");
  EXPECT_NE(base::refusal_of([&] { render(model); }).find("too deeply"), std::string::npos);
  model.write("chat_template.jinja", std::string(2 << 20, ' '));
  EXPECT_NE(base::refusal_of([&] { render(model); }).find("is longer than"), std::string::npos);
}

// A template that only the parent's deadline ends is at fault too.
TEST(ChatTemplate, ThatCannotBeInterruptedIsNamed) {
  ModelDirectory model;
  worker::WorkerConfig config = worker::default_worker_config();
  config.deadline_s = 3;
  model.write("chat_template.jinja", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}");
  TextWorker worker(config, model.path());
  const std::string message = base::refusal_of([&] { worker.apply_chat_template({base::Json::array()}, {}); });
  EXPECT_NE(message.find("chat_template.jinja: the chat template did not end in 3 s"), std::string::npos) << message;
  EXPECT_EQ(worker.encode({""})[0].size(), 0U);
  EXPECT_EQ(worker.restarts(), 1);
}

// Other loaders run auto_map, Python files and pickles beside the weights.
TEST(TextWorker, RunsNothingOfAModelDirectory) {
  ModelDirectory model;
  const std::string canary = model.path() + "/canary";
  const std::string code = "open('" + canary + "', 'w').write('ran')\n";
  const std::string pickle = "cbuiltins\nexec\n(V" + code.substr(0, code.size() - 1) + "\ntR.";
  for (const char* name : {"tokenization_canary.py", "modeling_canary.py", "configuration_canary.py", "__init__.py",
                           "sitecustomize.py", "usercustomize.py", "tokenizers.py", "jinja2.py", "conftest.py"}) {
    model.write(name, code);
  }
  for (const char* name : {"pytorch_model.bin", "tokenizer.pkl", "tokenizer.bin", "training_args.bin"}) {
    model.write(name, pickle);
  }
  model.write("tokenizer_config.json", R"({"tokenizer_class": "CanaryTokenizer", "trust_remote_code": true,
      "auto_map": {"AutoTokenizer": ["tokenization_canary.CanaryTokenizer", null]}, "chat_template": "plain"})");
  model.write("config.json", R"({"auto_map": {"AutoModelForCausalLM": "modeling_canary.Canary"}})");
  // The pickle would do it, and so would the file.
  const std::string check = worker::default_worker_config().python + " -c \"import pickle; pickle.load(open('" +
                            model.path() + "/tokenizer.pkl', 'rb'))\"";
  ASSERT_EQ(std::system(check.c_str()), 0);
  ASSERT_TRUE(std::filesystem::remove(canary));

  TextWorker worker(worker::default_worker_config(), model.path());
  EXPECT_EQ(worker.apply_chat_template({base::Json::array()}, {})[0], "plain");
  worker.decode(worker.encode({"and the"}), false);
  worker.token_bytes();
  EXPECT_FALSE(std::filesystem::exists(canary));
}

TEST(ChatTemplate, IsMissedWhenAskedFor) {
  ModelDirectory model;
  TextWorker worker(worker::default_worker_config(), model.path());
  EXPECT_FALSE(worker.has_chat_template());
  const std::string message = base::refusal_of([&] { worker.apply_chat_template({base::Json::array()}, {}); });
  EXPECT_NE(message.find("has no chat template"), std::string::npos) << message;
}

}  // namespace
}  // namespace tandem::text
