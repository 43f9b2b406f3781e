#include "cli/scheduler_client.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "proto/scheduler.grpc.pb.h"
#include "scheduler/scheduler.h"

namespace godwit::cli {
namespace {

using Stub = proto::Scheduler::Stub;

// Longer than any call that the scheduler answers at once takes; a wait comes on top.
constexpr Duration kCallTimeout = std::chrono::seconds(15);
// A scheduler that was started in the line before listens by then.
constexpr Duration kStartTimeout = std::chrono::seconds(3);

bool HasEnded(const proto::JobInfo& job) {
  return job.state() == "Succeeded" || job.state() == "Failed" || job.state() == "Stopped";
}

}  // namespace

struct SchedulerClient::Impl {
  std::string address;
  std::unique_ptr<Stub> stub;

  template <typename Request, typename Reply>
  Result<Reply> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                     const Request& request, Duration wait = Duration(0)) {
    grpc::ClientContext context;
    context.set_deadline(
        std::chrono::system_clock::now() +
        std::chrono::duration_cast<std::chrono::milliseconds>(kCallTimeout + wait));
    Reply reply;
    const grpc::Status status = (stub.get()->*method)(&context, request, &reply);
    if (status.ok()) return reply;
    const auto code = static_cast<StatusCode>(status.error_code());
    if (code == StatusCode::kUnavailable) {
      return UnavailableError(fmt::format(
          "no scheduler answers at {}; start one with 'godwit scheduler', or name one with "
          "--scheduler or GODWIT_SCHEDULER",
          address));
    }
    if (code == StatusCode::kDeadlineExceeded) {
      return DeadlineExceededError(fmt::format("the scheduler at {} did not answer in {} s",
                                               address,
                                               (kCallTimeout + wait) / std::chrono::seconds(1)));
    }
    return Status(code,
                  status.error_message().empty() ? StatusCodeName(code) : status.error_message());
  }
};

SchedulerClient::SchedulerClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SchedulerClient::SchedulerClient(SchedulerClient&&) noexcept = default;
SchedulerClient::~SchedulerClient() = default;

Result<SchedulerClient> SchedulerClient::Open(const std::string& address) {
  GODWIT_RETURN_IF_ERROR(CheckSchedulerAddress(address).Annotate("--scheduler"));
  auto impl = std::make_unique<Impl>();
  impl->address = address;
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(64 << 20);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  const std::shared_ptr<grpc::Channel> channel =
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  // If it does not, the first call says so.
  channel->WaitForConnected(std::chrono::system_clock::now() +
                            std::chrono::duration_cast<std::chrono::milliseconds>(kStartTimeout));
  impl->stub = proto::Scheduler::NewStub(channel);
  return SchedulerClient(std::move(impl));
}

Result<proto::SubmitReply> SchedulerClient::Submit(const proto::SubmitRequest& request) {
  return impl_->Call(&Stub::Submit, request);
}

Result<proto::ListJobsReply> SchedulerClient::ListJobs(bool all) {
  proto::ListJobsRequest request;
  request.set_all(all);
  return impl_->Call(&Stub::ListJobs, request);
}

Result<proto::JobInfo> SchedulerClient::GetJob(const std::string& id_or_name) {
  proto::GetJobRequest request;
  request.set_job_id(id_or_name);
  Result<proto::JobInfo> by_id = impl_->Call(&Stub::GetJob, request);
  if (by_id.ok() || by_id.status().code() != StatusCode::kNotFound) return by_id;

  GODWIT_ASSIGN_OR_RETURN(const proto::ListJobsReply all, ListJobs(true));
  std::vector<const proto::JobInfo*> named;
  for (const proto::JobInfo& job : all.jobs()) {
    if (job.spec().name() == id_or_name) named.push_back(&job);
  }
  if (named.empty()) {
    return NotFoundError(
        fmt::format("job '{}': no job has that id or name; see 'godwit jobs --all'", id_or_name));
  }
  const auto living = std::partition(named.begin(), named.end(),
                                     [](const proto::JobInfo* job) { return !HasEnded(*job); });
  if (living - named.begin() > 1) {
    return FailedPreconditionError(fmt::format(
        "job '{}': {} jobs with that name have not ended; give an id (see 'godwit jobs')",
        id_or_name, living - named.begin()));
  }
  if (living == named.begin()) {
    std::sort(named.begin(), named.end(), [](const proto::JobInfo* a, const proto::JobInfo* b) {
      return a->created_unix_ms() > b->created_unix_ms();
    });
  }
  // ListJobs may leave out what only GetJob tells.
  request.set_job_id(named.front()->job_id());
  return impl_->Call(&Stub::GetJob, request);
}

Result<proto::ExplainReply> SchedulerClient::Explain(const std::string& job_id) {
  proto::GetJobRequest request;
  request.set_job_id(job_id);
  return impl_->Call(&Stub::Explain, request);
}

Status SchedulerClient::StopJob(const std::string& job_id, const std::string& reason) {
  proto::StopJobRequest request;
  request.set_job_id(job_id);
  request.set_reason(reason);
  return impl_->Call(&Stub::StopJob, request).status();
}

Result<proto::PreemptJobReply> SchedulerClient::PreemptJob(const std::string& job_id,
                                                           Duration grace,
                                                           const std::string& reason) {
  proto::PreemptJobRequest request;
  request.set_job_id(job_id);
  request.set_grace_ns(static_cast<uint64_t>(ToNanos(grace)));
  request.set_reason(reason);
  return impl_->Call(&Stub::PreemptJob, request);
}

Result<proto::ListEventsReply> SchedulerClient::ListEvents(const std::string& job_id,
                                                           uint64_t after, Duration wait) {
  proto::ListEventsRequest request;
  request.set_job_id(job_id);
  request.set_after(after);
  request.set_wait_ms(static_cast<uint32_t>(wait / std::chrono::milliseconds(1)));
  request.set_limit(1000);
  return impl_->Call(&Stub::ListEvents, request, wait);
}

Result<proto::ListQuotasReply> SchedulerClient::ListQuotas() {
  return impl_->Call(&Stub::ListQuotas, proto::ListQuotasRequest());
}

Result<proto::ListNodesReply> SchedulerClient::ListNodes() {
  return impl_->Call(&Stub::ListNodes, proto::ListNodesRequest());
}

}  // namespace godwit::cli
