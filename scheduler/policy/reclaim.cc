#include "scheduler/policy/reclaim.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace godwit::policy {
namespace {

constexpr char kRule[] = "idle-quota/2";

// Guaranteed workers that the job could have once the victims are gone, at most its minimum.
uint32_t WorkersAfter(const Job& job, Capacity capacity, const std::vector<const Job*>& victims) {
  for (const Job* victim : victims) capacity.GiveReturning(*victim);
  const uint32_t room = capacity.room(job.quota) / job.slots_per_worker;
  for (uint32_t workers = std::min(job.min_workers, room); workers > 0; --workers) {
    if (capacity.Allocate(job, workers)) return workers;
  }
  return 0;
}

bool MayBeReclaimed(const Job& holder, const Job& job) {
  if (holder.phase != Phase::kStarting && holder.phase != Phase::kRunning) return false;
  if (holder.Slots(Claim::kIdle) == 0) return false;
  // One of the same quota that comes first anyway would only come back on the guarantee.
  const bool first = holder.job_class != job.job_class ? holder.job_class > job.job_class
                                                       : holder.seniority < job.seniority;
  return holder.quota != job.quota || holder.idle == IdleUse::kOnly || !first;
}

}  // namespace

std::variant<Certificate, std::string> PlanReclaim(const ClusterState& state, const Job& job,
                                                   const Capacity& released) {
  std::vector<const Job*> candidates;
  for (const auto& [id, other] : state.jobs) {
    if (MayBeReclaimed(other, job)) candidates.push_back(&other);
  }
  std::sort(candidates.begin(), candidates.end(), [&](const Job* a, const Job* b) {
    const uint64_t borrowed_a = released.idle_used(a->quota);
    const uint64_t borrowed_b = released.idle_used(b->quota);
    const uint64_t share_a = borrowed_a * std::max(state.quotas[b->quota].guaranteed, 1u);
    const uint64_t share_b = borrowed_b * std::max(state.quotas[a->quota].guaranteed, 1u);
    if (share_a != share_b) return share_a > share_b;
    if (a->Slots() != b->Slots()) return a->Slots() < b->Slots();
    if (a->seniority != b->seniority) return a->seniority > b->seniority;
    return a->id < b->id;
  });

  std::vector<const Job*> victims;
  bool enough = false;
  for (const Job* candidate : candidates) {
    victims.push_back(candidate);
    if (WorkersAfter(job, released, victims) == job.min_workers) {
      enough = true;
      break;
    }
  }
  const uint32_t spw = job.slots_per_worker;
  if (!enough) {
    return fmt::format("even if all {} jobs on idle capacity left, {} of the {} workers could run",
                       candidates.size(), WorkersAfter(job, released, victims), job.min_workers);
  }
  // The least wanted victims are the ones that were added last.
  for (size_t i = victims.size(); i-- > 0;) {
    std::vector<const Job*> others = victims;
    others.erase(others.begin() + static_cast<ptrdiff_t>(i));
    if (WorkersAfter(job, released, others) == job.min_workers) victims = std::move(others);
  }

  Certificate certificate;
  certificate.rule = kRule;
  certificate.preemptor = job.id;
  certificate.quota = state.quotas[job.quota].name;
  certificate.need_slots = job.min_workers * spw;
  certificate.have_slots = WorkersAfter(job, released, {}) * spw;
  for (size_t i = 0; i < victims.size(); ++i) {
    std::vector<const Job*> others = victims;
    others.erase(others.begin() + static_cast<ptrdiff_t>(i));
    certificate.victims.push_back({victims[i]->id, victims[i]->Slots(Claim::kIdle),
                                   victims[i]->Slots(Claim::kGuaranteed),
                                   WorkersAfter(job, released, others) * spw});
  }
  for (const Job* candidate : candidates) certificate.considered.push_back(candidate->id);
  return certificate;
}

Status CheckCertificate(const ClusterState& state, const Certificate& certificate) {
  const auto fail = [](std::string what) { return FailedPreconditionError(std::move(what)); };
  if (certificate.rule != kRule) return fail("unknown rule '" + certificate.rule + "'");
  const auto it = state.jobs.find(certificate.preemptor);
  if (it == state.jobs.end()) return fail("no job '" + certificate.preemptor + "'");
  const Job& job = it->second;
  if (job.phase != Phase::kWaiting || job.idle != IdleUse::kForbid) {
    return fail(job.id + " is not a waiting job that forbids idle capacity");
  }
  const Capacity released(state, Capacity::At::kReleased);
  if (certificate.need_slots != job.min_workers * job.slots_per_worker) {
    return fail(fmt::format("{} does not need {} slots", job.id, certificate.need_slots));
  }
  if (certificate.victims.empty()) return fail("there is no victim");
  std::vector<const Job*> victims;
  for (const Certificate::Victim& victim : certificate.victims) {
    const auto found = state.jobs.find(victim.job);
    if (found == state.jobs.end() || !MayBeReclaimed(found->second, job)) {
      return fail(victim.job + " holds no idle slots that can be reclaimed");
    }
    victims.push_back(&found->second);
  }
  if (WorkersAfter(job, released, victims) != job.min_workers) {
    return fail(job.id + " would not fit without its victims");
  }
  for (size_t i = 0; i < victims.size(); ++i) {
    std::vector<const Job*> others = victims;
    others.erase(others.begin() + static_cast<ptrdiff_t>(i));
    if (WorkersAfter(job, released, others) == job.min_workers) {
      return fail(victims[i]->id + " need not have left");
    }
  }
  return OkStatus();
}

}  // namespace godwit::policy
