#include "master/process/storage.h"

namespace godwit::master {

Result<ckpt::Found> CheckpointStorage::FindNewest(const std::string& dir,
                                                  const std::set<ckpt::SaveId>& distrusted) {
  GODWIT_RETURN_IF_ERROR(ckpt::OpenCheckpointDir(fs_, dir, /*create=*/false));
  return ckpt::FindNewest(fs_, dir, distrusted);
}

Result<ckpt::NewTerm> CheckpointStorage::BeginTerm(const std::string& dir,
                                                   const std::string& job_id, uint64_t now_unix_ms,
                                                   const std::set<ckpt::SaveId>& distrusted) {
  GODWIT_RETURN_IF_ERROR(ckpt::OpenCheckpointDir(fs_, dir, /*create=*/true));
  return ckpt::BeginTerm(fs_, dir, job_id, now_unix_ms, distrusted);
}

Result<ckpt::Commit> CheckpointStorage::CommitSave(const std::string& dir, const ckpt::SaveId& save,
                                                   const std::vector<std::string>& tails) {
  return ckpt::CommitSave(fs_, dir, save, tails);
}

Status CheckpointStorage::Retain(const std::string& dir, uint64_t term, uint32_t keep) {
  return ckpt::Retain(fs_, dir, term, keep);
}

}  // namespace godwit::master
