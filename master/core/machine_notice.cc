// Notices: the job leaves as a whole, with as much as the time allows.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "master/core/machine.h"

namespace godwit::master {

using enum Phase;

Duration Machine::TimeLeft() const {
  if (!s_.durable.notice) return timeouts().stop;
  return std::max(s_.durable.notice->deadline() - now_, Duration(0));
}

Plan Machine::PlanNow() const {
  PlanInput input;
  input.measured = s_.measured;
  const auto whole = NewestWhole(s_, false);
  const bool stores = !s_.durable.directory.empty();
  switch (s_.phase) {
    case kRunning:
    case kClosing:
    case kLimiting:
    case kStaging:
      input.from = PlanFrom::kRunning;
      input.needs_save = stores;
      break;
    case kParking:
    case kCommitting:
    case kFinishing:
      input.from = PlanFrom::kStaged;
      input.needs_save = stores;
      break;
    default:
      input.from = PlanFrom::kStopped;
      input.needs_save = stores && whole && whole->step > CommittedStep();
  }
  return PlanLeave(input);
}

// The earliest deadline counts for all.
void Machine::ArmNotice() {
  const MonotonicTime deadline = s_.durable.notice->deadline();
  Arm(TimerId::kGiveUp, deadline - timeouts().give_up_lead);
  Arm(TimerId::kFallback, deadline - timeouts().give_up_lead - FallbackLead(s_.measured));
}

void Machine::On(const NoticeReceived& e) {
  Durable& d = s_.durable;
  if (e.directive > 0) d.acknowledged_directive = std::max(d.acknowledged_directive, e.directive);
  const Duration time_left =
      e.stop && e.time_left == Duration(0) ? timeouts().default_stop_grace : e.time_left;
  const auto reply = [&](std::string message) {
    const Plan plan = PlanNow();
    decision_.actions.push_back(
        ReplyNotice{e.id, true, std::move(message), plan.to_node, plan.to_gpu});
  };
  if (d.outcome) {
    decision_.actions.push_back(
        ReplyNotice{e.id, true, "the job is over: " + d.outcome->reason, Duration(0), Duration(0)});
    for (const NoticeRecord& record : d.notices) {
      if (record.id != e.id) continue;
      decision_.actions.push_back(ReportNotice{record});
      return;
    }
    NoticeRecord record;
    record.id = e.id;
    record.reason = e.reason;
    record.preemptor = e.preemptor;
    record.time_left = time_left;
    record.safe_step = CommittedStep();
    record.in_time = true;
    record.message = "the job was over: " + d.outcome->reason;
    decision_.actions.push_back(ReportNotice{record});
    decision_.actions.push_back(ReportReleased{e.id, true});
    d.notices.push_back(std::move(record));
    if (d.notices.size() > kMaxRecords) d.notices.erase(d.notices.begin());
    return;
  }
  if (d.notice) {
    for (NoticePart& part : d.notice->parts) {
      if (part.id != e.id) continue;
      part.deadline = std::min(part.deadline, SaturatingAdd(now_, time_left));
      part.stop |= e.stop;
      ArmNotice();
      return reply("known already");
    }
  }
  if (std::find(d.notice_ids.begin(), d.notice_ids.end(), e.id) != d.notice_ids.end()) {
    return reply("over already");
  }
  d.notice_ids.push_back(e.id);
  if (d.notice_ids.size() > kMaxRecords) d.notice_ids.erase(d.notice_ids.begin());
  const Plan plan = PlanNow();
  NoticePart part;
  part.id = e.id;
  part.reason = e.reason;
  part.preemptor = e.preemptor;
  part.time_left = time_left;
  part.received = now_;
  part.deadline = SaturatingAdd(now_, time_left);
  part.predicted = plan.to_node;
  part.predicted_gpu = plan.to_gpu;
  part.stop = e.stop;
  const bool first = !d.notice;
  if (first) d.notice.emplace();
  d.notice->parts.push_back(std::move(part));
  if (d.notice->parts.size() > kMaxRecords) d.notice->parts.erase(d.notice->parts.begin());
  if (first && s_.restart_wanted) {
    // A notice was taken back too late to stay, and now there is another one.
    s_.restart_wanted = false;
    d.restarting = false;
    d.notice->parking = s_.phase == kParking || s_.phase == kCommitting;
    d.notice->abandoned = s_.phase == kAbandoning;
    if (d.notice->parking) d.notice->agreed = s_.agreed_step;
  }
  ArmNotice();
  // What is being written without hurry is in the way of what is to be written in time.
  for (SaveInFlight& save : s_.saves) {
    if (save.urgent || !SaveReads(save)) continue;
    save.urgent = true;
    for (uint32_t n = 0; n < s_.nodes.size(); ++n) SendPersist(n, save);
  }
  std::string message;
  if (s_.phase == kFinishing) {
    message = "the job is about to finish";
  } else if (plan.to_node > time_left) {
    message = fmt::format(
        "the predicted {} are more than the {} that are left; as much as "
        "possible will be kept",
        HumanDuration(plan.to_node), HumanDuration(time_left));
  }
  Say(fmt::format("notice {}: {} left, {} predicted", e.id, HumanDuration(time_left),
                  HumanDuration(plan.to_node)));
  reply(std::move(message));
}

void Machine::On(const RescindReceived& e) {
  Durable& d = s_.durable;
  if (e.directive > 0) d.acknowledged_directive = std::max(d.acknowledged_directive, e.directive);
  const auto refuse = [&](std::string why) {
    decision_.actions.push_back(ReplyRescind{e.id, false, std::move(why)});
  };
  if (d.outcome) return refuse("too late: the nodes are released");
  if (!d.notice) return refuse(fmt::format("no notice '{}' is active", e.id));
  const auto it = std::find_if(d.notice->parts.begin(), d.notice->parts.end(),
                               [&](const NoticePart& p) { return p.id == e.id; });
  if (it == d.notice->parts.end()) return refuse(fmt::format("no notice '{}' is active", e.id));
  NoticeRecord record;
  record.id = it->id;
  record.reason = it->reason;
  record.preemptor = it->preemptor;
  record.time_left = it->time_left;
  record.predicted = it->predicted;
  record.safe_step = CommittedStep();
  record.in_time = true;
  record.message = "rescinded";
  record.longest_step = s_.measured.longest_step;
  decision_.actions.push_back(ReportNotice{record});
  d.notices.push_back(std::move(record));
  if (d.notices.size() > kMaxRecords) d.notices.erase(d.notices.begin());
  d.notice->parts.erase(it);
  Say(fmt::format("notice {} is rescinded", e.id));
  decision_.actions.push_back(ReplyRescind{e.id, true, ""});
  if (!d.notice->parts.empty()) return ArmNotice();
  d.notice.reset();
  Disarm(TimerId::kFallback);
  Disarm(TimerId::kGiveUp);
  if (s_.phase == kParking || s_.phase == kCommitting || s_.phase == kAbandoning) {
    // The workers are on their way out. Memory holds their state: they start again in place.
    s_.restart_wanted = true;
    d.restarting = true;
    Arm(TimerId::kPhase, SaturatingAdd(now_, timeouts().stop));
  }
}

void Machine::BeginClosing() { Enter(kClosing, "notice " + s_.durable.notice->parts.front().id); }

void Machine::Abandon(std::string why) {
  Durable& d = s_.durable;
  d.notice->abandoned = true;
  d.notice->agreed.reset();
  d.notice->message = why;
  if (d.failure_pending) {
    // What the failure cost is the failure's, not the notice's.
    const auto whole = NewestWhole(s_, false);
    const uint64_t best = std::max(whole ? whole->step : 0, CommittedStep());
    d.failure_pending = false;
    if (!d.failures.empty()) {
      d.failures.back().steps_redone =
          d.entered_at_failure > best ? d.entered_at_failure - best : 0;
      d.failures.back().action = fmt::format("left on a notice, with step {}", best);
    }
    s_.max_entered = std::min(s_.max_entered, best);
  }
  d.restarting = false;
  Enter(kAbandoning, std::move(why));
}

void Machine::NoteReleasedGpu() {
  if (!s_.durable.notice || s_.durable.notice->released_gpu_at) return;
  s_.durable.notice->released_gpu_at = now_;
  for (const NoticePart& part : s_.durable.notice->parts) {
    decision_.actions.push_back(ReportReleased{part.id, false});
  }
}

void Machine::RecordNotices(std::string note) {
  Durable& d = s_.durable;
  if (AllGone()) NoteReleasedGpu();
  const Notice notice = *d.notice;
  std::string message = notice.message;
  if (!note.empty()) message += (message.empty() ? "" : "; ") + note;
  const uint64_t safe = CommittedStep();
  for (const NoticePart& part : notice.parts) {
    const auto since = [&](const std::optional<MonotonicTime>& at) {
      return at ? std::max(*at - part.received, Duration(0)) : Duration(0);
    };
    NoticeRecord record;
    record.id = part.id;
    record.reason = part.reason;
    record.preemptor = part.preemptor;
    record.time_left = part.time_left;
    record.predicted = part.predicted;
    record.agreed_step = notice.agreed.value_or(0);
    record.safe_step = safe;
    record.steps_lost = s_.max_entered > safe ? s_.max_entered - safe : 0;
    record.parked = since(notice.parked_at);
    record.released_gpu = since(notice.released_gpu_at);
    record.committed = since(notice.committed_at);
    record.released_node = since(now_);
    record.in_time = now_ <= part.deadline;
    record.message = message;
    record.longest_step = s_.measured.longest_step;
    decision_.actions.push_back(ReportReleased{part.id, true});
    decision_.actions.push_back(ReportNotice{record});
    d.notices.push_back(std::move(record));
    if (d.notices.size() > kMaxRecords) d.notices.erase(d.notices.begin());
  }
  d.notice.reset();
}

void Machine::LeaveOnNotice(std::string note) {
  Durable& d = s_.durable;
  // Only one that was thought safe is worth 75.
  const bool lost = s_.max_entered > CommittedStep();
  const bool stop = d.notice->stop();
  const NoticePart part = d.notice->parts.front();
  std::string reason = fmt::format("{}{}{}", part.reason.empty() ? "notice" : part.reason,
                                   part.preemptor.empty() ? "" : ", for ", part.preemptor);
  RecordNotices(std::move(note));
  const int code = stop ? 93 : lost ? 76 : 75;
  d.outcome =
      Outcome{stop ? OutcomeState::kStopped : OutcomeState::kPreempted, reason, !stop, code};
  Enter(kLeaving, std::move(reason));
}

}  // namespace godwit::master
