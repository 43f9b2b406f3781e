#include "scheduler/api/handlers.h"

namespace godwit::api {

Status ReportMaster(Controller& controller, const proto::MasterReport& request,
                    proto::MasterReportReply* reply) {
  reply->set_stale(!controller.Report(request));
  return OkStatus();
}

}  // namespace godwit::api
