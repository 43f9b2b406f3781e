#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"
#include "ckpt/lineage/checkpoint_dir.h"

namespace godwit::master {

// What the master does in the checkpoint directory; a seam for tests. All calls block on storage.
// ckpt/lineage/checkpoint_dir.h says what each promises.
class Storage {
 public:
  virtual ~Storage() = default;
  // NOT_FOUND when there is no such directory yet.
  virtual Result<ckpt::Found> FindNewest(const std::string& dir,
                                         const std::set<ckpt::SaveId>& distrusted) = 0;
  // Creates the directory if it is missing.
  virtual Result<ckpt::NewTerm> BeginTerm(const std::string& dir, const std::string& job_id,
                                          uint64_t now_unix_ms,
                                          const std::set<ckpt::SaveId>& distrusted) = 0;
  virtual Result<ckpt::Commit> CommitSave(const std::string& dir, const ckpt::SaveId& save,
                                          const std::vector<std::string>& tails) = 0;
  virtual Status Retain(const std::string& dir, uint64_t term, uint32_t keep) = 0;
};

class CheckpointStorage : public Storage {
 public:
  explicit CheckpointStorage(FileSystem& fs) : fs_(fs) {}
  Result<ckpt::Found> FindNewest(const std::string& dir,
                                 const std::set<ckpt::SaveId>& distrusted) override;
  Result<ckpt::NewTerm> BeginTerm(const std::string& dir, const std::string& job_id,
                                  uint64_t now_unix_ms,
                                  const std::set<ckpt::SaveId>& distrusted) override;
  Result<ckpt::Commit> CommitSave(const std::string& dir, const ckpt::SaveId& save,
                                  const std::vector<std::string>& tails) override;
  Status Retain(const std::string& dir, uint64_t term, uint32_t keep) override;

 private:
  FileSystem& fs_;
};

}  // namespace godwit::master
