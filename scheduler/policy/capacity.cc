#include "scheduler/policy/capacity.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/strings.h"

namespace godwit::policy {

Capacity::Capacity(const ClusterState& state, At at) : quotas_(&state.quotas) {
  for (const Node& node : state.nodes) free_.push_back(node.slots);
  for (const Quota& quota : state.quotas) room_.push_back(quota.guaranteed);
  open_ = room_;
  used_.assign(state.quotas.size(), 0);
  idle_used_.assign(state.quotas.size(), 0);
  returning_.assign(state.quotas.size(), 0);
  for (const auto& [id, job] : state.jobs) {
    if (at == At::kReleased && job.phase == Phase::kLeaving) {
      if (job.leave != LeaveReason::kStop) {
        returning_[job.quota] += job.Slots(Claim::kGuaranteed);
      }
      continue;
    }
    Take(job, job.workers);
  }
}

uint32_t Capacity::free_slots() const {
  return std::accumulate(free_.begin(), free_.end(), uint32_t{0});
}

uint32_t Capacity::Usable(uint32_t quota) const {
  uint32_t kept = 0;
  for (uint32_t other = 0; other < quotas_->size(); ++other) {
    // What a quota that doesn't lend borrows itself stands on its own guarantee first.
    if (other == quota) continue;
    uint32_t kept_for_other = std::min(returning_[other], room_[other]);
    if (!(*quotas_)[other].lendable) {
      kept_for_other =
          std::max(kept_for_other, room_[other] - std::min(room_[other], idle_used_[other]));
    }
    kept += kept_for_other;
  }
  const uint32_t free = free_slots();
  return free - std::min(free, kept);
}

std::optional<std::vector<uint32_t>> Capacity::Pack(const Job& job, uint32_t workers,
                                                    const Capacity* avoid) const {
  std::vector<uint32_t> order(free_.size());
  std::iota(order.begin(), order.end(), 0);
  const uint32_t spw = job.slots_per_worker;
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    if (avoid != nullptr && avoid->free_[a] != avoid->free_[b]) {
      return avoid->free_[a] < avoid->free_[b];
    }
    const uint32_t fit_a = std::min(free_[a] / spw, workers);
    const uint32_t fit_b = std::min(free_[b] / spw, workers);
    if (fit_a != fit_b) return fit_a > fit_b;
    return free_[a] < free_[b];
  });
  std::vector<uint32_t> nodes;
  for (const uint32_t node : order) {
    const uint32_t left = workers - static_cast<uint32_t>(nodes.size());
    nodes.insert(nodes.end(), std::min(left, free_[node] / spw), node);
    if (nodes.size() == workers) break;
  }
  if (nodes.size() < workers) return std::nullopt;
  // Ranks follow the order of nodes.
  std::sort(nodes.begin(), nodes.end());
  return nodes;
}

std::optional<std::vector<WorkerPlace>> Capacity::Allocate(const Job& job, uint32_t workers,
                                                           const Capacity* avoid) const {
  const uint32_t spw = job.slots_per_worker;
  const uint32_t guaranteed =
      job.idle == IdleUse::kOnly ? 0 : std::min(workers, open_[job.quota] / spw);
  if (!Leaves(job, guaranteed, workers - guaranteed)) return std::nullopt;
  std::optional<std::vector<uint32_t>> nodes = Pack(job, workers, avoid);
  if (!nodes) return std::nullopt;
  std::vector<WorkerPlace> places;
  for (const uint32_t node : *nodes) {
    places.push_back({node, places.size() < guaranteed ? Claim::kGuaranteed : Claim::kIdle});
  }
  return places;
}

bool Capacity::Leaves(const Job& job, uint32_t guaranteed, uint32_t idle) const {
  const uint32_t spw = job.slots_per_worker;
  uint64_t slots = uint64_t{guaranteed + idle} * spw;
  if (idle > 0) {
    if (job.idle == IdleUse::kForbid) return false;
    const std::optional<uint32_t> max = (*quotas_)[job.quota].max;
    if (max && used_[job.quota] + idle_used_[job.quota] + slots > *max) return false;
    // Idle claims don't use what's kept for guaranteed ones of the same quota either.
    const uint32_t room = room_[job.quota];
    slots += std::min(returning_[job.quota], room - std::min(room, guaranteed * spw));
  }
  return slots <= Usable(job.quota);
}

bool Capacity::Leaves(const Job& job, std::span<const WorkerPlace> places) const {
  const auto guaranteed =
      static_cast<uint32_t>(std::count_if(places.begin(), places.end(), [](const WorkerPlace& p) {
        return p.claim == Claim::kGuaranteed;
      }));
  return Leaves(job, guaranteed, static_cast<uint32_t>(places.size()) - guaranteed);
}

std::optional<std::vector<WorkerPlace>> Capacity::AllocateMost(const Job& job, uint32_t low,
                                                               uint32_t high,
                                                               const Capacity* also) const {
  const uint32_t most = free_slots() / job.slots_per_worker;
  for (uint32_t workers = std::min(high, most); workers >= low && workers > 0; --workers) {
    auto places = Allocate(job, workers);
    if (places && (also == nullptr || also->Leaves(job, *places))) return places;
  }
  return std::nullopt;
}

void Capacity::Take(const Job& job, std::span<const WorkerPlace> places) {
  for (const WorkerPlace& place : places) {
    GODWIT_CHECK(free_[place.node] >= job.slots_per_worker);
    free_[place.node] -= job.slots_per_worker;
    if (place.claim == Claim::kGuaranteed) {
      used_[job.quota] += job.slots_per_worker;
      // A guarantee that was lowered meanwhile may be exceeded.
      room_[job.quota] -= std::min(room_[job.quota], job.slots_per_worker);
      open_[job.quota] -= std::min(open_[job.quota], job.slots_per_worker);
    } else {
      idle_used_[job.quota] += job.slots_per_worker;
    }
  }
}

void Capacity::Give(const Job& job, std::span<const WorkerPlace> places) {
  for (const WorkerPlace& place : places) {
    free_[place.node] += job.slots_per_worker;
    uint32_t& used = place.claim == Claim::kGuaranteed ? used_[job.quota] : idle_used_[job.quota];
    GODWIT_CHECK(used >= job.slots_per_worker);
    used -= job.slots_per_worker;
    if (place.claim == Claim::kGuaranteed) {
      const uint32_t guaranteed = (*quotas_)[job.quota].guaranteed;
      room_[job.quota] = std::min(room_[job.quota] + job.slots_per_worker,
                                  guaranteed - std::min(guaranteed, used));
      open_[job.quota] = std::min(open_[job.quota] + job.slots_per_worker, room_[job.quota]);
    }
  }
}

void Capacity::GiveReturning(const Job& job) {
  Give(job, job.workers);
  returning_[job.quota] += job.Slots(Claim::kGuaranteed);
}

void Capacity::ForgetReturning(const Job& job) {
  returning_[job.quota] -= std::min(returning_[job.quota], job.Slots(Claim::kGuaranteed));
}

void Capacity::ClipTo(const Capacity& other) {
  for (size_t i = 0; i < free_.size(); ++i) free_[i] = std::min(free_[i], other.free_[i]);
  for (size_t i = 0; i < room_.size(); ++i) {
    room_[i] = std::min(room_[i], other.room_[i]);
    open_[i] = std::min(open_[i], room_[i]);
  }
}

std::optional<std::string> NeverFits(const ClusterState& state, const Job& job) {
  const Quota& quota = state.quotas[job.quota];
  const uint64_t slots = uint64_t{job.min_workers} * job.slots_per_worker;
  uint64_t workers = 0;
  uint32_t largest = 0;
  for (const Node& node : state.nodes) {
    workers += node.slots / job.slots_per_worker;
    largest = std::max(largest, node.slots);
  }
  if (job.slots_per_worker > largest) {
    return fmt::format("a worker needs {} on one node; the largest node has {}",
                       Count(job.slots_per_worker, "slot"), largest);
  }
  if (workers < job.min_workers) {
    return fmt::format("it needs {} of {}; the whole cluster has room for {}",
                       Count(job.min_workers, "worker"), Count(job.slots_per_worker, "slot"),
                       workers);
  }
  if (job.idle == IdleUse::kForbid && slots > quota.guaranteed) {
    return fmt::format(
        "it needs {} and forbids idle capacity; quota '{}' guarantees {} (allowed: fewer "
        "workers, or --idle accept)",
        Count(slots, "slot"), quota.name, quota.guaranteed);
  }
  if (job.idle != IdleUse::kForbid) {
    uint64_t usable = state.Capacity();
    for (uint32_t other = 0; other < state.quotas.size(); ++other) {
      if (other != job.quota && !state.quotas[other].lendable) {
        usable -= state.quotas[other].guaranteed;
      }
    }
    if (slots > usable) {
      return fmt::format(
          "it needs {}; at most {} can ever be free for quota '{}', the rest "
          "belongs to quotas that don't lend",
          Count(slots, "slot"), usable, quota.name);
    }
    const bool within_guarantee = job.idle == IdleUse::kAccept && slots <= quota.guaranteed;
    if (quota.max && slots > *quota.max && !within_guarantee) {
      return fmt::format("it needs {}; quota '{}' may use at most {}", Count(slots, "slot"),
                         quota.name, *quota.max);
    }
  }
  return std::nullopt;
}

}  // namespace godwit::policy
