#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace godwit {

// A directory of one's own (mode 0700) under TMPDIR (else /tmp), removed with all that is in it
// when destroyed. Symbolic links in it are removed, not followed.
class TempDir {
 public:
  static Result<TempDir> Create(std::string_view prefix = "godwit");
  TempDir(TempDir&& other) noexcept;
  TempDir& operator=(TempDir&& other) noexcept;
  ~TempDir();

  const std::string& path() const { return path_; }  // absolute if TMPDIR is
  std::string File(std::string_view name) const;     // <path>/<name>
  // Leaves the directory where it is.
  std::string Release();

 private:
  explicit TempDir(std::string path) : path_(std::move(path)) {}
  std::string path_;  // empty: none
};

// Removes a file or a directory with all that is in it, without following symbolic links. OK when
// there is nothing.
Status RemoveAll(const std::string& path);

}  // namespace godwit
