#include <cstdio>
#include <string>
#include <vector>

#include "cli/command_line.h"

int main(int argc, char** argv) {
  const int code = godwit::cli::RunCommandLine(std::vector<std::string>(argv + 1, argv + argc));
  // Output that could not be written is an error, not a success (a full disk behind a redirection).
  if (std::fflush(stdout) != 0 && code == 0) {
    std::perror("godwit: stdout");
    return 1;
  }
  return code;
}
