#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "scheduler/store/records.h"

struct sqlite3;

namespace godwit {

// What the scheduler must not forget, in an SQLite database <directory>/scheduler.db (WAL,
// synchronous=FULL): a committed batch survives a crash of the process and of the host. One process
// owns a store at a time. Used by one thread; every call may block on the disk.
//
// Errors: RESOURCE_EXHAUSTED when the disk is full (nothing of the batch is kept, what was there
// stays), DATA_LOSS for a damaged database; both name the file.
class Store {
 public:
  // All or nothing.
  struct Batch {
    std::vector<JobRecord> jobs;  // replace the rows of the same key
    std::vector<AttemptRecord> attempts;
    std::vector<ProcessRecord> processes;
    std::vector<DirectiveRecord> directives;
    std::vector<proto::Event> events;                                  // with their numbers
    std::vector<std::pair<std::string, proto::NoticeRecord>> notices;  // by job
    // Replaces the one with the same job, attempt and sequence: what was done about a failure is
    // known later than the failure.
    struct Failure {
      std::string job_id;
      uint32_t attempt = 0;
      proto::FailureRecord record;
    };
    std::vector<Failure> failures;
    std::vector<std::pair<std::string, std::string>> settings;

    bool empty() const {
      return jobs.empty() && attempts.empty() && processes.empty() && directives.empty() &&
             events.empty() && notices.empty() && failures.empty() && settings.empty();
    }
  };
  // What a scheduler starts with.
  struct Contents {
    std::vector<JobRecord> jobs;              // all, by number
    std::vector<AttemptRecord> attempts;      // the newest of each job
    std::vector<ProcessRecord> processes;     // of attempts that have not ended
    std::vector<DirectiveRecord> directives;  // of those attempts, not acknowledged, by number
    uint64_t last_directive = 0;
    uint64_t last_event = 0;
  };

  // Makes the directory (0700) and the database when they're missing. FAILED_PRECONDITION when
  // another process owns the store (the message has its pid), or when the database was written by
  // another version of the schema.
  static Result<std::unique_ptr<Store>> Open(const std::string& directory);
  ~Store();

  Result<Contents> Load();
  Status Commit(const Batch& batch);

  // Events with a number above `after`, oldest first; of one job, or of all for an empty id.
  Result<std::vector<proto::Event>> Events(const std::string& job_id, uint64_t after,
                                           uint32_t limit);
  Result<std::vector<proto::NoticeRecord>> Notices(const std::string& job_id);
  Result<std::vector<proto::FailureRecord>> Failures(const std::string& job_id);
  // "" when it was never set.
  Result<std::string> Setting(const std::string& name);
  // A random name of this store, made with it: marks the processes started from it.
  const std::string& id() const { return id_; }

  // At most so many pages from now on: what a full disk looks like.
  Status LimitPagesForTest(uint32_t pages);

 private:
  Store(std::string path, UniqueFd lock, sqlite3* db)
      : path_(std::move(path)), lock_(std::move(lock)), db_(db) {}
  Status Exec(const char* sql);
  Status Prepare();
  Status WriteAll(const Batch& batch);
  Status Error(const std::string& what) const;

  class Statement;
  const std::string path_;
  const UniqueFd lock_;
  sqlite3* const db_;
  std::string id_;
};

}  // namespace godwit
