#include "cli/watch.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "cli/verb.h"

namespace godwit::cli {

int PrintOrWatch(bool watch, const std::function<Result<std::string>()>& render) {
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  while (true) {
    const Result<std::string> text = render();
    if (!text.ok()) return Fail(text.status());
    if (watch && terminal) std::fputs("\033[H\033[2J", stdout);
    std::fputs(text->c_str(), stdout);
    if (std::fflush(stdout) != 0) return kExitError;  // the reader has gone
    if (!watch) return kExitOk;
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

}  // namespace godwit::cli
