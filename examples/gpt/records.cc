#include "examples/gpt/records.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

namespace gpt {
namespace {

std::FILE* OpenOrDie(const std::string& path, const char* mode) {
  std::error_code error;
  const auto folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  std::FILE* file = std::fopen(path.c_str(), mode);
  if (file == nullptr) {
    std::fprintf(stderr, "gpt: cannot write '%s': %s\n", path.c_str(), std::strerror(errno));
    std::exit(78);
  }
  return file;
}

}  // namespace

AuditLog AuditLog::OpenOrExit(const std::string& folder, const godwit::Run& run) {
  AuditLog log;
  if (folder.empty()) return log;
  log.path_ = folder + "/audit-" + std::to_string(run.term()) + "-" + std::to_string(run.epoch()) +
              "-" + std::to_string(run.rank()) + ".log";
  log.prefix_ = std::to_string(run.term()) + " " + std::to_string(run.epoch()) + " ";
  log.rank_ = run.rank();
  log.file_ = OpenOrDie(log.path_, "a");
  return log;
}

AuditLog::AuditLog(AuditLog&& other) noexcept
    : file_(std::exchange(other.file_, nullptr)),
      path_(std::move(other.path_)),
      prefix_(std::move(other.prefix_)),
      rank_(other.rank_) {}

AuditLog::~AuditLog() {
  if (file_ != nullptr) std::fclose(file_);
}

void AuditLog::Write(uint64_t step, uint64_t pass,
                     std::span<const godwit::Step::MicroBatch> micro) {
  if (file_ == nullptr) return;
  std::string line =
      prefix_ + std::to_string(step) + " " + std::to_string(rank_) + " " + std::to_string(pass);
  for (const auto& batch : micro) {
    for (const uint64_t id : batch.ids()) line += " " + std::to_string(id);
  }
  line += "\n";
  if (std::fwrite(line.data(), 1, line.size(), file_) != line.size() || std::fflush(file_) != 0) {
    std::fprintf(stderr, "gpt: cannot write '%s': %s\n", path_.c_str(), std::strerror(errno));
    std::_Exit(1);
  }
}

LossLog LossLog::OpenOrExit(const std::string& path, const godwit::Run& run) {
  LossLog log;
  if (path.empty() || run.rank() != 0) return log;
  log.suffix_ = "," + std::to_string(run.world_size()) + "," + std::to_string(run.term()) + "," +
                std::to_string(run.epoch());
  log.file_ = OpenOrDie(path, "a");
  if (std::ftell(log.file_) == 0) {
    std::fputs("step,loss,held_out_loss,tokens_per_s,world_size,term,epoch\n", log.file_);
    std::fflush(log.file_);
  }
  return log;
}

LossLog::LossLog(LossLog&& other) noexcept
    : file_(std::exchange(other.file_, nullptr)), suffix_(std::move(other.suffix_)) {}

LossLog::~LossLog() {
  if (file_ != nullptr) std::fclose(file_);
}

void LossLog::Write(const LossLine& line) {
  if (file_ == nullptr) return;
  std::fprintf(file_, "%llu,%.6f,", static_cast<unsigned long long>(line.updates), line.loss);
  if (line.held_out_loss) std::fprintf(file_, "%.6f", *line.held_out_loss);
  std::fprintf(file_, ",%.0f%s\n", line.tokens_per_s, suffix_.c_str());
  std::fflush(file_);
}

}  // namespace gpt
