#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/file_system.h"
#include "base/status.h"

namespace godwit::ckpt {

// What lies under a name of a directory of checkpoints. Something else than a file of an allowed
// size is damage (DATA_LOSS naming the path), as flipped bytes are: readers go on to what is
// intact. Other errors are those of the file system: what may be readable later is not damage.
Result<std::unique_ptr<RandomAccessFile>> OpenStored(FileSystem& fs, const std::string& path);
Result<std::string> ReadStored(FileSystem& fs, const std::string& path, uint64_t max_bytes);

}  // namespace godwit::ckpt
