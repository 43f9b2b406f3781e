#pragma once

#include <utility>

namespace godwit {

// Owns a file descriptor; -1 is none. Closing ignores the error, so whoever cares about one (a
// file's writer) closes the descriptor that Release() gives.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) Reset(other.Release());
    return *this;
  }
  ~UniqueFd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  explicit operator bool() const { return valid(); }
  int Release() { return std::exchange(fd_, -1); }
  // Closes what is held, then holds `fd`. Keeps errno.
  void Reset(int fd = -1);

 private:
  int fd_ = -1;
};

}  // namespace godwit
