// Runs commands of the program for page_commands.py, each in a child of this process, which has LibTorch in memory
// already: a start of the program by itself takes half a second longer.
//
// Reads {"folder": FOLDER, "words": [WORD, ...]} in a line of standard input for each command, and answers in a line
// {"code": EXIT CODE, "out": STANDARD OUTPUT, "err": STANDARD ERROR}. This process has one thread, so that a child is
// what a started program would be.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "base/json.h"
#include "cli/command_line.h"
#include "session/stop_signal.h"

namespace tandem::cli {
namespace {

[[noreturn]] void become_command(const std::string& folder, const std::vector<std::string>& words, std::FILE* out,
                                 std::FILE* err) {
  const int nothing = open("/dev/null", O_RDONLY);
  const bool is_ready = chdir(folder.c_str()) == 0 && dup2(nothing, STDIN_FILENO) >= 0 &&
                        dup2(fileno(out), STDOUT_FILENO) >= 0 && dup2(fileno(err), STDERR_FILENO) >= 0;
  if (!is_ready) _exit(kExitEnvironment);
  session::install_stop_signals();
  const int code = run_command_line(words);
  std::fflush(nullptr);
  _exit(code);
}

std::string contents(std::FILE* file) {
  std::string text;
  std::rewind(file);
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text += static_cast<char>(c);
  return text;
}

base::Json answer_of(const base::Json& command) {
  std::FILE* const out = std::tmpfile();
  std::FILE* const err = std::tmpfile();
  const pid_t child = fork();
  if (child == 0) become_command(command.at("folder"), command.at("words"), out, err);
  int status = 0;
  waitpid(child, &status, 0);
  base::Json answer = {{"code", WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status)},
                       {"out", contents(out)},
                       {"err", contents(err)}};
  std::fclose(out);
  std::fclose(err);
  return answer;
}

}  // namespace
}  // namespace tandem::cli

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const tandem::base::Json answer = tandem::cli::answer_of(tandem::base::Json::parse(line));
    std::cout << answer.dump(-1, ' ', /*ensure_ascii=*/true, tandem::base::Json::error_handler_t::replace)
              << std::endl;
  }
}
