#pragma once

#include "base/file_system.h"

namespace godwit {

// The process's own file system; lives as long as the process. Descriptors are close-on-exec.
FileSystem& RealFileSystem();

}  // namespace godwit
