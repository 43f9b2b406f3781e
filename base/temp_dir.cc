#include "base/temp_dir.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/file_system.h"

namespace godwit {

Result<TempDir> TempDir::Create(std::string_view prefix) {
  const char* root = std::getenv("TMPDIR");
  if (root == nullptr || *root == '\0') root = "/tmp";
  std::string path = JoinPath(root, std::string(prefix) + ".XXXXXX");
  if (mkdtemp(path.data()) == nullptr) return ErrnoError(errno, "mkdtemp(" + path + ")");
  return TempDir(std::move(path));
}

TempDir::TempDir(TempDir&& other) noexcept : path_(other.Release()) {}

TempDir& TempDir::operator=(TempDir&& other) noexcept {
  if (this != &other) {
    if (!path_.empty()) (void)RemoveAll(path_);
    path_ = other.Release();
  }
  return *this;
}

TempDir::~TempDir() {
  // Nobody to tell; what stays is in a directory for temporary files.
  if (!path_.empty()) (void)RemoveAll(path_);
}

std::string TempDir::File(std::string_view name) const { return JoinPath(path_, name); }

std::string TempDir::Release() { return std::exchange(path_, std::string()); }

Status RemoveAll(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) return ErrnoError(error.value(), "remove_all(" + path + ")");
  return OkStatus();
}

}  // namespace godwit
