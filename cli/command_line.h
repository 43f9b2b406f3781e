#pragma once

#include <string>
#include <vector>

namespace godwit::cli {

// Runs `godwit ARGS...` and returns the process's exit code. A wrong verb or option is one line on
// stderr that names the nearest right one, and code 2.
int RunCommandLine(std::vector<std::string> args);

}  // namespace godwit::cli
