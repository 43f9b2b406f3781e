#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string>

#include "godwit/runtime/run.h"

namespace gpt {

// The data set's own log: which samples this worker read, a line per step, on disk (for the
// process, not for the power) before the step goes on. Lines "term epoch step rank pass id id ...".
class AuditLog {
 public:
  // Makes <folder>/audit-<term>-<epoch>-<rank>.log; an empty folder: no log. Ends the process with
  // one line when that fails.
  static AuditLog OpenOrExit(const std::string& folder, const godwit::Run& run);
  AuditLog(AuditLog&& other) noexcept;
  ~AuditLog();

  void Write(uint64_t step, uint64_t pass, std::span<const godwit::Step::MicroBatch> micro);

 private:
  AuditLog() = default;
  std::FILE* file_ = nullptr;
  std::string path_;
  std::string prefix_;  // "term epoch "
  uint32_t rank_ = 0;
};

struct LossLine {
  uint64_t updates = 0;  // done
  double loss = 0;       // of the step's global batch
  std::optional<double> held_out_loss;
  double tokens_per_s = 0;
};

// The loss curve as CSV: step,loss,held_out_loss,tokens_per_s,world_size,term,epoch. Rank 0 alone
// writes, at the end of what earlier workers wrote.
class LossLog {
 public:
  static LossLog OpenOrExit(const std::string& path, const godwit::Run& run);
  LossLog(LossLog&& other) noexcept;
  ~LossLog();

  void Write(const LossLine& line);

 private:
  LossLog() = default;
  std::FILE* file_ = nullptr;
  std::string suffix_;  // ",world_size,term,epoch"
};

}  // namespace gpt
