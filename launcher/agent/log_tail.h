#pragma once

#include <cstddef>
#include <string>

namespace godwit {

// The last whole lines of a text file, at most `max_bytes` of them (of a longer last line: its
// end). Empty when the file can't be read. Bytes that are no valid UTF-8 become '?', since what a
// program printed travels in protobuf strings.
std::string LogTail(const std::string& path, size_t max_bytes);

// The same repair for any text.
std::string ValidUtf8(std::string text);

}  // namespace godwit
