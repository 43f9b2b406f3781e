#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "base/thread.h"
#include "base/unique_fd.h"

namespace godwit {

// Copies what workers write to their log files (e<epoch>-r<rank>.out and .err in one directory) to
// two descriptors, in whole lines and without loss. A thread of its own, so that a console that
// blocks holds up nobody else.
class ConsoleTail {
 public:
  struct Options {
    std::string
        directory;        // exists; files that are in it already are copied from their present end
    bool prefix = false;  // "[rank] " before each line
    int out_fd = 1;
    int err_fd = 2;
  };
  // A line that gets longer than this is copied in pieces.
  static constexpr size_t kMaxLineBytes = 1 << 20;

  static Result<std::unique_ptr<ConsoleTail>> Start(const Options& options);
  ~ConsoleTail();

  // Copies all that is in the files by now, last lines without newline too, then ends. Returns at
  // the deadline at the latest, even if the console takes nothing.
  void Finish(MonotonicTime deadline);

 private:
  struct File {
    UniqueFd fd;
    bool is_err = false;
    uint64_t offset = 0;
    std::string partial;
    std::string prefix;
  };

  ConsoleTail(const Options& options, UniqueFd watch, UniqueFd wake);
  void Run();
  Status FindFiles(bool from_end);
  void CopyAll(bool at_end);
  bool CopySome(File* file, bool at_end);
  void Write(int fd, bool* broken, std::string_view text);

  const Options options_;
  const UniqueFd watch_;  // inotify of the directory
  const UniqueFd wake_;   // eventfd: finish
  std::atomic<bool> finishing_{false};
  std::atomic<int64_t> deadline_ns_;  // of the finish
  // The thread's own.
  std::map<std::string, File> files_;
  bool out_broken_ = false;
  bool err_broken_ = false;
  Thread thread_;
};

}  // namespace godwit
