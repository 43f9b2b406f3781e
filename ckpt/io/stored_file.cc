#include "ckpt/io/stored_file.h"

namespace godwit::ckpt {
namespace {

// FAILED_PRECONDITION: a folder has the name (EISDIR), or a file that of a folder (ENOTDIR).
// OUT_OF_RANGE: too large.
Status AsDamage(const Status& status) {
  if (status.code() == StatusCode::kFailedPrecondition ||
      status.code() == StatusCode::kOutOfRange) {
    return DataLossError(status.message());
  }
  return status;
}

}  // namespace

Result<std::unique_ptr<RandomAccessFile>> OpenStored(FileSystem& fs, const std::string& path) {
  auto file = fs.OpenRead(path);
  if (!file.ok()) return AsDamage(file.status());
  return file;
}

Result<std::string> ReadStored(FileSystem& fs, const std::string& path, uint64_t max_bytes) {
  auto bytes = fs.ReadFile(path, max_bytes);
  if (!bytes.ok()) return AsDamage(bytes.status());
  return bytes;
}

}  // namespace godwit::ckpt
