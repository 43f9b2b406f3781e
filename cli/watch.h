#pragma once

#include <functional>
#include <string>

#include "base/status.h"

namespace godwit::cli {

// Prints what `render` gives, once, or each second until it fails or the process is interrupted.
// On a terminal each picture replaces the one before. Returns the exit code.
int PrintOrWatch(bool watch, const std::function<Result<std::string>()>& render);

}  // namespace godwit::cli
