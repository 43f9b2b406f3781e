#pragma once

#include <cstddef>
#include <string>

namespace godwit {

// The last whole lines of a text file, at most `max_bytes` of them (of a longer last line: its
// end). Empty when the file can't be read. As ValidUtf8 (base/strings.h) gives it.
std::string LogTail(const std::string& path, size_t max_bytes);

}  // namespace godwit
