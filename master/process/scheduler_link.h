#pragma once

#include <string>

#include "master/core/action.h"
#include "proto/scheduler.pb.h"

namespace godwit::master {

// What the engine tells the scheduler; a seam. No call blocks. What can't be delivered now is kept
// (at most a bound) and delivered in order when the scheduler is back.
class SchedulerLink {
 public:
  virtual ~SchedulerLink() = default;
  virtual void Ack(const proto::NoticeReply& reply) = 0;
  virtual void Released(const std::string& notice_id, bool node) = 0;
  virtual void Notice(const proto::NoticeRecord& record) = 0;
  virtual void Happened(const proto::Event& event) = 0;
  // Directives up to this number need not be sent again.
  virtual void Acknowledged(uint64_t number) = 0;
  // Something in the status changed: report it soon.
  virtual void StatusChanged() = 0;
  // The last report. The engine's OnOutcomeDelivered follows when it is delivered or given up.
  virtual void Finish(const proto::JobOutcome& outcome) = 0;
};

}  // namespace godwit::master
