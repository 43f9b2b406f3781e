#pragma once

#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace godwit::testing {

// Writes an executable shell script that stands for `godwit master` and `godwit agent`: it notes
// its pid in <run-dir>/pid and its arguments in <run-dir>/args, and waits for the word that Tell
// sends it, then ends with that exit code. "kill" lets it kill itself, "daemon" leaves a process in
// a session of its own behind before it ends with 0. SIGTERM ends it (code 76), unless
// <run-dir>/../stubborn exists.
Status WriteFakeProgram(const std::string& path);

// Sends the word to the process of that run directory; waits until it listens, at most until the
// deadline.
Status Tell(const std::string& run_dir, const std::string& word, MonotonicTime deadline);

}  // namespace godwit::testing
