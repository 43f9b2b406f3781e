#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "proto/scheduler.pb.h"

namespace godwit::cli {

// The scheduler, as the command's verbs ask it. Every call blocks, for a bounded time. When nobody
// answers the error (UNAVAILABLE) names the address and how to start or name a scheduler. Not
// thread-safe.
class SchedulerClient {
 public:
  // Waits, 3 s at most, until the scheduler listens; that it does not is the next call's error.
  // INVALID_ARGUMENT for an address that can't be.
  static Result<SchedulerClient> Open(const std::string& address);
  SchedulerClient(SchedulerClient&&) noexcept;
  ~SchedulerClient();

  Result<proto::SubmitReply> Submit(const proto::SubmitRequest& request);
  Result<proto::ListJobsReply> ListJobs(bool all);
  // By id or name. Of several jobs with that name it is the one that has not ended, else the
  // newest; FAILED_PRECONDITION when several have not.
  Result<proto::JobInfo> GetJob(const std::string& id_or_name);
  Result<proto::ExplainReply> Explain(const std::string& job_id);
  Status StopJob(const std::string& job_id, const std::string& reason);
  Result<proto::PreemptJobReply> PreemptJob(const std::string& job_id, Duration grace,
                                            const std::string& reason);
  // Waits up to `wait` for an event after `after`.
  Result<proto::ListEventsReply> ListEvents(const std::string& job_id, uint64_t after,
                                            Duration wait);
  Result<proto::ListQuotasReply> ListQuotas();
  Result<proto::ListNodesReply> ListNodes();

 private:
  struct Impl;
  explicit SchedulerClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace godwit::cli
