#pragma once

#include "base/status.h"
#include "proto/scheduler.pb.h"
#include "scheduler/controller.h"

// One function per RPC of proto/scheduler.proto, in a file of its name; on the scheduler's thread.
// An error's code and message are what the client gets; the reply counts only when OK.
namespace godwit::api {

Status Submit(Controller& controller, const proto::SubmitRequest& request,
              proto::SubmitReply* reply);
Status ListJobs(Controller& controller, const proto::ListJobsRequest& request,
                proto::ListJobsReply* reply);
Status GetJob(Controller& controller, const proto::GetJobRequest& request, proto::JobInfo* reply);
Status StopJob(Controller& controller, const proto::StopJobRequest& request,
               proto::StopJobReply* reply);
Status PreemptJob(Controller& controller, const proto::PreemptJobRequest& request,
                  proto::PreemptJobReply* reply);
// Fills in what there is; no event means that the caller waits.
Status ListEvents(Controller& controller, const proto::ListEventsRequest& request,
                  proto::ListEventsReply* reply);
Status Explain(Controller& controller, const proto::GetJobRequest& request,
               proto::ExplainReply* reply);
Status ListQuotas(Controller& controller, const proto::ListQuotasRequest& request,
                  proto::ListQuotasReply* reply);
Status ListNodes(Controller& controller, const proto::ListNodesRequest& request,
                 proto::ListNodesReply* reply);
Status RegisterMaster(Controller& controller, const proto::RegisterMasterRequest& request,
                      proto::RegisterMasterReply* reply);
// Fills in what there is; no directive means that the caller waits.
Status PollDirectives(Controller& controller, const proto::PollDirectivesRequest& request,
                      proto::PollDirectivesReply* reply);
Status ReportMaster(Controller& controller, const proto::MasterReport& request,
                    proto::MasterReportReply* reply);
Status LocateMaster(Controller& controller, const proto::LocateMasterRequest& request,
                    proto::LocateMasterReply* reply);

}  // namespace godwit::api
