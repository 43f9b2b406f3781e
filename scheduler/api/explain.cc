#include "scheduler/api/handlers.h"

#include <fmt/core.h>

#include "base/strings.h"
#include "scheduler/api/job_info.h"

namespace godwit::api {

namespace {

std::string LeaveText(const Controller::Job& job) {
  const AttemptRecord& attempt = *job.attempt;
  std::string text = fmt::format("It is leaving ({}", attempt.leave_reason);
  if (!attempt.preemptor.empty()) text += " for " + attempt.preemptor;
  text += ").";
  if (job.ack && job.ack->accepted()) {
    text += fmt::format(" Its master expects to be gone within {} of the notice.",
                        HumanDuration(Duration(static_cast<int64_t>(job.ack->eta_ns()))));
  }
  return text;
}

}  // namespace

Status Explain(Controller& controller, const proto::GetJobRequest& request,
               proto::ExplainReply* reply) {
  GODWIT_ASSIGN_OR_RETURN(const Controller::Job* job, controller.Find(request.job_id()));
  const JobRecord& record = job->record;
  std::string text = fmt::format("{} ('{}', quota '{}', idle {}, class {}) is {}{}{}.\n", record.id,
                                 record.spec.name(), record.spec.quota(), record.spec.idle(),
                                 record.spec.job_class(), JobStateName(record.state),
                                 record.reason.empty() ? "" : ": ", record.reason);
  if (job->Placed()) {
    const proto::JobInfo info = MakeJobInfo(controller, *job);
    text +=
        fmt::format("It has {} ({} in quota, {} idle) on {}: {}.\n",
                    Count(info.workers(), "worker"), info.guaranteed_workers(), info.idle_workers(),
                    Count(static_cast<uint64_t>(info.nodes_size()), "node"), info.resource());
    if (job->Leaving()) text += LeaveText(*job) + "\n";
  }
  if (!record.explanation.empty()) {
    text += fmt::format("Last told to leave because: {}.\n", record.explanation);
  }
  if (record.preemptions > 0 || record.restarts > 0 || record.losses > 0) {
    text += fmt::format(
        "So far: {} starts, {} preemptions (not charged), {} failures charged, {} "
        "attempts lost.\n",
        record.attempt, record.preemptions, record.restarts, record.losses);
  }
  // Whom it has told to leave, or tells now.
  for (const auto& [id, other] : controller.cluster().jobs) {
    if (other.phase == policy::Phase::kLeaving && other.preemptor == record.id) {
      text += fmt::format("{} is leaving for it.\n", id);
    }
  }
  reply->set_text(std::move(text));
  reply->set_certificate_json(record.certificate_json);
  return OkStatus();
}

}  // namespace godwit::api
