#include "scheduler/api/handlers.h"

namespace godwit::api {

Status StopJob(Controller& controller, const proto::StopJobRequest& request, proto::StopJobReply*) {
  return controller.Stop(request.job_id(), request.reason());
}

}  // namespace godwit::api
