#include "examples/gpt/audit_log.h"

#include <cerrno>
#include <cinttypes>
#include <filesystem>

namespace godwit::gpt {

Result<AuditLog> AuditLog::Open(const std::string& folder, uint64_t term, uint64_t epoch,
                                uint32_t rank) {
  AuditLog log;
  if (folder.empty()) return log;
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  if (code) return ErrnoError(code.value(), "--audit: mkdir(" + folder + ")");
  log.path_ = folder + "/audit-" + std::to_string(term) + "-" + std::to_string(epoch) + "-" +
              std::to_string(rank) + ".log";
  log.file_.reset(std::fopen(log.path_.c_str(), "ae"));
  if (log.file_ == nullptr) return ErrnoError(errno, "--audit: open(" + log.path_ + ")");
  log.term_ = term;
  log.epoch_ = epoch;
  log.rank_ = rank;
  return log;
}

void AuditLog::Add(uint64_t step, uint64_t pass, std::span<const uint64_t> ids) {
  if (file_ == nullptr) return;
  std::fprintf(file_.get(), "%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu32 " %" PRIu64, term_,
               epoch_, step, rank_, pass);
  for (const uint64_t id : ids) std::fprintf(file_.get(), " %" PRIu64, id);
  std::fputc('\n', file_.get());
}

Status AuditLog::EndStep() {
  if (file_ == nullptr || std::fflush(file_.get()) == 0) return OkStatus();
  return ErrnoError(errno, "--audit: write(" + path_ + ")");
}

}  // namespace godwit::gpt
