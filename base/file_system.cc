#include "base/file_system.h"

namespace godwit {

Status RandomAccessFile::ReadFully(uint64_t offset, MutableByteSpan out) const {
  GODWIT_ASSIGN_OR_RETURN(const size_t n, ReadAt(offset, out));
  if (n == out.size()) return OkStatus();
  return DataLossError("file ends early: " + std::to_string(out.size()) +
                       " bytes wanted at offset " + std::to_string(offset) + ", " +
                       std::to_string(n) + " there");
}

Status FileSystem::CreateDirs(const std::string& path) {
  const Result<FileInfo> info = Stat(path);
  if (info.ok()) {
    if (info->is_dir) return OkStatus();
    return FailedPreconditionError("cannot create directory '" + path + "': a file has that name");
  }
  if (info.status().code() != StatusCode::kNotFound) return info.status();
  const std::string parent = DirName(path);
  if (parent != path) GODWIT_RETURN_IF_ERROR(CreateDirs(parent));
  const Status made = CreateDir(path);
  if (made.code() == StatusCode::kAlreadyExists) {
    // Someone was faster; it still has to be a directory.
    GODWIT_ASSIGN_OR_RETURN(const FileInfo now, Stat(path));
    if (now.is_dir) return OkStatus();
    return FailedPreconditionError("cannot create directory '" + path + "': a file has that name");
  }
  GODWIT_RETURN_IF_ERROR(made);
  return SyncDir(parent);
}

Result<std::string> FileSystem::ReadFile(const std::string& path, uint64_t max_bytes) {
  GODWIT_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file, OpenRead(path));
  if (file->size() > max_bytes) {
    return OutOfRangeError("'" + path + "' has " + std::to_string(file->size()) +
                           " bytes, allowed: " + std::to_string(max_bytes));
  }
  std::string text(file->size(), '\0');
  GODWIT_ASSIGN_OR_RETURN(
      const size_t n, file->ReadAt(0, {reinterpret_cast<std::byte*>(text.data()), text.size()}));
  text.resize(n);
  return text;
}

namespace {
Status WriteAndClose(WritableFile& file, ByteSpan bytes, bool sync) {
  GODWIT_RETURN_IF_ERROR(file.Append(bytes));
  if (sync) GODWIT_RETURN_IF_ERROR(file.Sync());
  return file.Close();
}
}  // namespace

Status WriteFileExclusive(FileSystem& fs, const std::string& path, ByteSpan bytes,
                          Durability durability) {
  GODWIT_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, fs.CreateExclusive(path));
  Status status = WriteAndClose(*file, bytes, durability != Durability::kNone);
  file.reset();
  if (status.ok() && durability == Durability::kFileAndName) status = fs.SyncDir(DirName(path));
  // The first error is what the caller needs; whether the clean-up works changes nothing for them.
  if (!status.ok()) (void)fs.Unlink(path);
  return status;
}

Status WriteFileAtomic(FileSystem& fs, const std::string& temp_path, const std::string& path,
                       ByteSpan bytes) {
  GODWIT_RETURN_IF_ERROR(WriteFileExclusive(fs, temp_path, bytes, Durability::kFile));
  const Status linked = fs.Link(temp_path, path);
  const Status unlinked = fs.Unlink(temp_path);
  GODWIT_RETURN_IF_ERROR(linked);
  GODWIT_RETURN_IF_ERROR(unlinked);
  return fs.SyncDir(DirName(path));
}

std::string JoinPath(std::string_view dir, std::string_view name) {
  if (dir.empty()) return std::string(name);
  std::string path(dir);
  if (path.back() != '/') path += '/';
  return path += name;
}

namespace {
// Without slashes at the end; "/" stays.
std::string_view Stripped(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  return path;
}
}  // namespace

std::string DirName(std::string_view path) {
  path = Stripped(path);
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  return std::string(Stripped(path.substr(0, slash + 1)));
}

std::string BaseName(std::string_view path) {
  path = Stripped(path);
  return std::string(path.substr(path.rfind('/') + 1));
}

}  // namespace godwit
