#include "scheduler/policy/decide.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/strings.h"
#include "scheduler/policy/capacity.h"

namespace godwit::policy {
namespace {

// Doublings of grow_after at most.
constexpr uint32_t kMaxGrowBackoff = 10;

std::string Slots(uint32_t n) { return Count(n, "slot"); }
std::string Workers(size_t n) { return Count(n, "worker"); }

// One look at all jobs after an event.
class Planner {
 public:
  Planner(ClusterState& state, MonotonicTime now, Decision& decision)
      : state_(state), now_(now), decision_(decision) {}

  void Run() {
    // Again while somebody was placed: in a strict queue the next one is then the head. Each round
    // settles at least one job.
    for (size_t rounds = 2 * state_.jobs.size() + 1; rounds > 0 && PlaceWaiting(); --rounds) {
    }
    ExpandPlaced();
    for (auto& [notice, phase] : reclaims_) decision_.actions.push_back(std::move(notice));
    for (const std::string& id : placed_) {
      decision_.actions.push_back(StartJob{id, state_.jobs.at(id).workers});
    }
    Promote();
    Grow();
  }

 private:
  uint32_t MinSlots(const Job& job) const { return job.min_workers * job.slots_per_worker; }

  std::vector<Job*> Waiting() {
    std::vector<Job*> jobs;
    for (auto& [id, job] : state_.jobs) {
      if (job.phase == Phase::kWaiting) jobs.push_back(&job);
    }
    std::sort(jobs.begin(), jobs.end(), [](const Job* a, const Job* b) {
      if (a->planned != b->planned) return a->planned;
      if (a->job_class != b->job_class) return a->job_class > b->job_class;
      if (a->seniority != b->seniority) return a->seniority < b->seniority;
      return a->id < b->id;
    });
    return jobs;
  }

  bool Behind(Job& job) {
    const std::string& head = head_[job.quota];
    if (head.empty()) return false;
    job.wait = {WaitKind::kBehind,
                fmt::format("waits behind {}, the head of quota '{}' (strict fifo)", head,
                            state_.quotas[job.quota].name)};
    return true;
  }

  bool Waits(Job& job, WaitKind kind, std::string text) {
    job.wait = {kind, std::move(text)};
    if (state_.quotas[job.quota].queue == QueueStrategy::kStrictFifo && head_[job.quota].empty()) {
      head_[job.quota] = job.id;
    }
    return true;
  }

  void Place(Job& job, std::vector<WorkerPlace> workers) {
    capacity_->Take(job, workers);
    released_->Take(job, workers);
    job.workers = std::move(workers);
    job.phase = Phase::kStarting;
    job.wait = {};
    job.planned = false;
    placed_.push_back(job.id);
    changed_ = true;
  }

  // What the job will get of what's being released is not for others.
  void Reserve(const Job& job, std::span<const WorkerPlace> places) {
    released_->Take(job, places);
    capacity_->ClipTo(*released_);
  }

  bool PlaceWaiting() {
    // Who was placed after all, on what an earlier round placed and took back, evicts nobody.
    std::erase_if(reclaims_, [&](const std::pair<NotifyJob, Phase>& reclaim) {
      const auto& [notice, phase] = reclaim;
      if (state_.jobs.at(notice.preemptor).phase == Phase::kWaiting) return false;
      state_.jobs.at(notice.job).phase = phase;
      state_.jobs.at(notice.job).preemptor.clear();
      return true;
    });
    capacity_.emplace(state_, Capacity::At::kNow);
    released_.emplace(state_, Capacity::At::kReleased);
    head_.assign(state_.quotas.size(), "");
    changed_ = false;
    const std::vector<Job*> waiting = Waiting();
    std::vector<Job*> idle;
    for (Job* job : waiting) {
      if (job->idle == IdleUse::kOnly) {
        idle.push_back(job);
      } else if (Behind(*job)) {
        continue;
      } else if (PlaceGuaranteed(*job)) {
        continue;
      } else if (job->idle == IdleUse::kAccept) {
        idle.push_back(job);
        // It's its turn until it's known whether idle slots do.
        if (state_.quotas[job->quota].queue == QueueStrategy::kStrictFifo) {
          head_[job->quota] = job->id;
        }
      } else {
        if (!Reclaim(*job)) return true;
      }
    }
    PlaceIdle(std::move(idle));
    return changed_;
  }

  bool PlaceGuaranteed(Job& job) {
    if (capacity_->room(job.quota) < MinSlots(job)) return false;
    auto places = capacity_->AllocateMost(job, job.min_workers, job.min_workers, &*released_);
    if (!places) return false;
    Place(job, std::move(*places));
    return true;
  }

  // False when the round is void: what was placed in an earlier one makes way first.
  bool Reclaim(Job& job) {
    const Quota& quota = state_.quotas[job.quota];
    const uint32_t need = MinSlots(job);
    const std::string full =
        fmt::format("waits for quota '{}': needs {} of its {}, {} free", quota.name, Slots(need),
                    quota.guaranteed, capacity_->room(job.quota));
    if (released_->room(job.quota) < need) return Waits(job, WaitKind::kQuota, full);
    if (auto places = released_->Allocate(job, job.min_workers, &*capacity_)) {
      Reserve(job, *places);
      return Waits(job, WaitKind::kRelease, fmt::format("waits for {} to leave", Leavers(job)));
    }
    if (capacity_->room(job.quota) < need) return Waits(job, WaitKind::kQuota, full);

    auto plan = PlanReclaim(state_, job, *released_);
    if (const auto* why = std::get_if<std::string>(&plan)) {
      return Waits(job, WaitKind::kCapacity,
                   fmt::format("waits for capacity: needs {}, {} free; {}", Slots(need),
                               capacity_->free_slots(), *why));
    }
    Certificate& certificate = std::get<Certificate>(plan);
    bool unplaced = false;
    for (const Certificate::Victim& each : certificate.victims) unplaced |= Unplace(each.job);
    if (unplaced) return false;
    for (const Certificate::Victim& each : certificate.victims) {
      Job& victim = state_.jobs.at(each.job);
      released_->GiveReturning(victim);
      const Phase before = victim.phase;
      victim.phase = Phase::kLeaving;
      victim.leave = LeaveReason::kReclaim;
      victim.preemptor = job.id;
      NotifyJob notice{
          victim.id, LeaveReason::kReclaim, job.id,
          fmt::format("quota '{}' reclaims lent slots for {}, which needs {} within its guarantee "
                      "of {}; {} holds {} of idle capacity",
                      quota.name, job.id, Slots(need), quota.guaranteed, victim.id,
                      Slots(each.idle_slots)),
          certificate};
      reclaims_.emplace_back(std::move(notice), before);
    }
    job.planned = true;
    const auto places = released_->Allocate(job, job.min_workers, &*capacity_);
    GODWIT_CHECK(places.has_value());
    Reserve(job, *places);
    return Waits(job, WaitKind::kRelease, fmt::format("waits for {} to leave", Leavers(job)));
  }

  // One that was placed in an earlier round and not yet told to start goes on waiting, and the next
  // round plans without it. False when the job runs.
  bool Unplace(const std::string& id) {
    const auto it = std::find(placed_.begin(), placed_.end(), id);
    if (it == placed_.end()) return false;
    placed_.erase(it);
    Job& job = state_.jobs.at(id);
    job.phase = Phase::kWaiting;
    job.workers.clear();
    changed_ = true;
    return true;
  }

  // Those whose slots the job waits for: its victims, else all that leave.
  std::string Leavers(const Job& job) const {
    std::string own;
    std::string all;
    for (const auto& [id, other] : state_.jobs) {
      if (other.phase != Phase::kLeaving) continue;
      all += (all.empty() ? "" : ", ") + id;
      if (other.preemptor == job.id) own += (own.empty() ? "" : ", ") + id;
    }
    return own.empty() ? all : own;
  }

  // What a job had before it moved for growth is its own before others get idle slots.
  void RestoreMoved() {
    for (const std::string& id : placed_) {
      Job& job = state_.jobs.at(id);
      const auto now = static_cast<uint32_t>(job.workers.size());
      if (job.moved_from > now) Expand(job, job.moved_from);
    }
  }

  void Expand(Job& job, uint32_t most) {
    Capacity without = *capacity_;
    without.Give(job, job.workers);
    const auto now = static_cast<uint32_t>(job.workers.size());
    Capacity released = *released_;
    released.Give(job, job.workers);
    auto places = without.AllocateMost(job, now + 1, most, &released);
    if (!places) return;
    without.Take(job, *places);
    released.Take(job, *places);
    *capacity_ = std::move(without);
    *released_ = std::move(released);
    job.workers = std::move(*places);
  }

  void PlaceIdle(std::vector<Job*> idle) {
    RestoreMoved();
    // A job that is being moved for growth keeps its place: nobody on idle slots may take it.
    for (auto& [id, job] : state_.jobs) {
      if (job.phase != Phase::kLeaving || job.leave != LeaveReason::kGrow) continue;
      released_->ForgetReturning(job);
      const auto places = released_->AllocateMost(job, job.min_workers, job.max_workers);
      if (places) Reserve(job, *places);
    }
    // By class, then the smallest borrowed share, which changes as jobs are placed.
    while (!idle.empty()) {
      const auto next = std::min_element(idle.begin(), idle.end(), [&](const Job* a, const Job* b) {
        if (a->job_class != b->job_class) return a->job_class > b->job_class;
        // One that has just been moved takes back what it gave.
        const bool moved_a = a->moved_from > 0;
        const bool moved_b = b->moved_from > 0;
        if (moved_a != moved_b) return moved_a;
        const uint64_t share_a =
            uint64_t{capacity_->idle_used(a->quota)} * std::max(GuaranteedOf(*b), 1u);
        const uint64_t share_b =
            uint64_t{capacity_->idle_used(b->quota)} * std::max(GuaranteedOf(*a), 1u);
        if (share_a != share_b) return share_a < share_b;
        return std::tie(a->seniority, a->id) < std::tie(b->seniority, b->id);
      });
      Job& job = **next;
      idle.erase(next);
      const std::string& head = head_[job.quota];
      if (!head.empty() && head != job.id) {
        Behind(job);
        continue;
      }
      const uint32_t most = std::max(job.min_workers, job.moved_from);
      if (auto places = capacity_->AllocateMost(job, job.min_workers, most, &*released_)) {
        Place(job, std::move(*places));
        continue;
      }
      Waits(job, WaitKind::kCapacity,
            fmt::format("waits for capacity: needs {}, {} usable by quota '{}'{}",
                        Slots(MinSlots(job)), capacity_->Usable(job.quota),
                        state_.quotas[job.quota].name, MaxNote(job)));
    }
  }

  uint32_t GuaranteedOf(const Job& job) const { return state_.quotas[job.quota].guaranteed; }

  std::string MaxNote(const Job& job) const {
    const std::optional<uint32_t> max = state_.quotas[job.quota].max;
    return max ? fmt::format(" (which may use {} in all)", *max) : "";
  }

  // Guaranteed slots of a quota in which somebody waits are for who waits.
  void CloseRoomsOfWaiting() {
    for (const auto& [id, job] : state_.jobs) {
      if (job.phase == Phase::kWaiting && job.idle != IdleUse::kOnly) {
        capacity_->CloseRoom(job.quota);
      }
    }
  }

  void ExpandPlaced() {
    CloseRoomsOfWaiting();
    std::vector<Job*> jobs;
    for (const std::string& id : placed_) jobs.push_back(&state_.jobs.at(id));
    std::stable_sort(jobs.begin(), jobs.end(), [](const Job* a, const Job* b) {
      if (a->job_class != b->job_class) return a->job_class > b->job_class;
      return a->seniority < b->seniority;
    });
    for (Job* job : jobs) {
      Expand(*job, job->max_workers);
      if (job->moved_from > 0) {
        const bool gained = job->workers.size() > job->moved_from;
        job->grow_failures = gained ? 0 : std::min(job->grow_failures + 1, kMaxGrowBackoff);
        job->moved_from = 0;
      }
      job->grow_not_before =
          SaturatingAdd(now_, state_.grow_after * (int64_t{1} << job->grow_failures));
    }
  }

  void Promote() {
    for (Job* job : Held()) {
      if (job->idle != IdleUse::kAccept || job->phase == Phase::kLeaving) continue;
      uint32_t promoted = 0;
      for (WorkerPlace& worker : job->workers) {
        if (worker.claim != Claim::kIdle) continue;
        if (capacity_->room(job->quota) < job->slots_per_worker) break;
        capacity_->Give(*job, {&worker, 1});
        worker.claim = Claim::kGuaranteed;
        capacity_->Take(*job, {&worker, 1});
        ++promoted;
      }
      if (promoted > 0) decision_.actions.push_back(PromoteJob{job->id, promoted});
    }
  }

  std::vector<Job*> Held() {
    std::vector<Job*> jobs;
    for (auto& [id, job] : state_.jobs) {
      if (job.Holds()) jobs.push_back(&job);
    }
    std::sort(jobs.begin(), jobs.end(), [](const Job* a, const Job* b) {
      if (a->job_class != b->job_class) return a->job_class > b->job_class;
      if (a->seniority != b->seniority) return a->seniority < b->seniority;
      return a->id < b->id;
    });
    return jobs;
  }

  void Grow() {
    std::set<uint32_t> waited_for;
    for (const auto& [id, job] : state_.jobs) {
      if (job.phase == Phase::kLeaving) return;
      if (job.phase != Phase::kWaiting) continue;
      // Who waits only for its own quota's guarantee takes nothing away from idle capacity.
      if (job.wait.kind != WaitKind::kQuota) return;
      waited_for.insert(job.quota);
    }
    for (Job* job : Held()) {
      const auto workers = static_cast<uint32_t>(job->workers.size());
      if (job->phase != Phase::kRunning || workers >= job->max_workers) continue;
      if (waited_for.count(job->quota) > 0) continue;  // it would lose its guaranteed slots
      Capacity without = *capacity_;
      without.Give(*job, job->workers);
      const auto places = without.AllocateMost(*job, workers + 1, job->max_workers);
      if (!places) continue;
      if (now_ < job->grow_not_before) {
        if (!decision_.wake_at || job->grow_not_before < *decision_.wake_at) {
          decision_.wake_at = job->grow_not_before;
        }
        continue;
      }
      job->phase = Phase::kLeaving;
      job->leave = LeaveReason::kGrow;
      job->preemptor.clear();
      job->moved_from = workers;
      decision_.actions.push_back(NotifyJob{
          job->id, LeaveReason::kGrow, "",
          fmt::format("{} can have {} instead of {}", job->id, Workers(places->size()), workers),
          std::nullopt});
      return;  // one at a time: it changes what others could have
    }
  }

  ClusterState& state_;
  const MonotonicTime now_;
  Decision& decision_;
  std::optional<Capacity> capacity_;  // now, less what is reserved
  std::optional<Capacity> released_;  // once what leaves is gone, less what is reserved
  std::vector<std::string> head_;    // by quota: the job that all others of a strict queue wait for
  std::vector<std::string> placed_;  // in this decision
  bool changed_ = false;             // in this round
  std::vector<std::pair<NotifyJob, Phase>> reclaims_;  // with the phases before
};

Job* Find(ClusterState& state, const std::string& id) {
  const auto it = state.jobs.find(id);
  return it == state.jobs.end() ? nullptr : &it->second;
}

void Apply(ClusterState& state, const JobSubmitted& event) {
  GODWIT_CHECK(event.job.phase == Phase::kWaiting && event.job.workers.empty());
  GODWIT_CHECK(!NeverFits(state, event.job));
  state.jobs.emplace(event.job.id, event.job);
}
void Apply(ClusterState& state, const JobRunning& event) {
  Job* job = Find(state, event.job);
  if (job != nullptr && job->phase == Phase::kStarting) job->phase = Phase::kRunning;
}
void Apply(ClusterState& state, const JobLeaving& event) {
  Job* job = Find(state, event.job);
  if (job == nullptr || !job->Holds()) return;
  // Being stopped ends every other reason to leave.
  if (job->phase == Phase::kLeaving && event.reason != LeaveReason::kStop) return;
  job->phase = Phase::kLeaving;
  job->leave = event.reason;
  job->preemptor.clear();
  job->moved_from = 0;
}
void Apply(ClusterState& state, const JobReleased& event) {
  Job* job = Find(state, event.job);
  if (job == nullptr) return;
  if (!event.requeue) {
    state.jobs.erase(event.job);
    return;
  }
  if (!job->Holds()) return;
  job->phase = Phase::kWaiting;
  job->workers.clear();
  job->preemptor.clear();
}
void Apply(ClusterState&, const Tick&) {}

}  // namespace

Decision Decide(ClusterState& state, const Event& event, MonotonicTime now) {
  std::visit([&](const auto& e) { Apply(state, e); }, event);
  Decision decision;
  Planner(state, now, decision).Run();
  return decision;
}

}  // namespace godwit::policy
