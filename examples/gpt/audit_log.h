#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"

namespace godwit::gpt {

// The data set's own record of what was read, one file per worker process, for
// `godwit ckpt ledger DIR --audit FOLDER`. One line per step with a share:
//   <term> <epoch> <step> <rank> <pass> <id> <id> …
// It knows nothing of checkpoints: a step that was done again after a failure stands in it twice,
// under two epochs.
class AuditLog {
 public:
  // An empty folder name: records nothing. Creates the folder; errors name it.
  static Result<AuditLog> Open(const std::string& folder, uint64_t term, uint64_t epoch,
                               uint32_t rank);

  // Appends ids read for the step; a step may have several. Reaches the kernel at EndStep.
  void Add(uint64_t step, uint64_t pass, std::span<const uint64_t> ids);
  // Hands the step's lines to the kernel: they survive a SIGKILL of this process.
  Status EndStep();

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, CloseFile> file_;
  std::string path_;
  uint64_t term_ = 0;
  uint64_t epoch_ = 0;
  uint32_t rank_ = 0;
};

}  // namespace godwit::gpt
