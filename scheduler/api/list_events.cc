#include "scheduler/api/handlers.h"

#include <algorithm>

namespace godwit::api {

namespace {
constexpr uint32_t kDefaultLimit = 1000;
constexpr uint32_t kMaxLimit = 10000;
}  // namespace

Status ListEvents(Controller& controller, const proto::ListEventsRequest& request,
                  proto::ListEventsReply* reply) {
  if (!request.job_id().empty()) {
    GODWIT_RETURN_IF_ERROR(controller.Find(request.job_id()).status());
  }
  const uint32_t limit =
      request.limit() == 0 ? kDefaultLimit : std::min(request.limit(), kMaxLimit);
  GODWIT_ASSIGN_OR_RETURN(const auto events,
                          controller.store().Events(request.job_id(), request.after(), limit));
  for (const proto::Event& event : events) *reply->add_events() = event;
  return OkStatus();
}

}  // namespace godwit::api
