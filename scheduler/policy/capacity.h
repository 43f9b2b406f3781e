#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "scheduler/policy/cluster.h"

namespace godwit::policy {

// What is free for whom: the state's free slots and quota room, as a value to plan on.
class Capacity {
 public:
  enum class At {
    kNow,
    kReleased,  // as if all leaving jobs had left
  };
  Capacity(const ClusterState& state, At at);

  // How `workers` workers of the job could be placed: guaranteed claims as far as its quota has
  // room, idle ones for the rest as far as the job uses them. nullopt when the job can't have that
  // many. Workers are put on as few nodes as possible; with `avoid`, on nodes where that has the
  // least free first.
  std::optional<std::vector<WorkerPlace>> Allocate(const Job& job, uint32_t workers,
                                                   const Capacity* avoid = nullptr) const;
  // The same for the largest count in [low, high] that also `also` leaves room for; nullopt when
  // there is none.
  std::optional<std::vector<WorkerPlace>> AllocateMost(const Job& job, uint32_t low, uint32_t high,
                                                       const Capacity* also = nullptr) const;
  // Whether these claims of the job leave what is kept for others.
  bool Leaves(const Job& job, std::span<const WorkerPlace> places) const;

  // The job now holds the places, or gives them back.
  void Take(const Job& job, std::span<const WorkerPlace> places);
  void Give(const Job& job, std::span<const WorkerPlace> places);
  // Gives back all that a job holds which leaves and comes back: its guaranteed slots are kept for
  // its quota.
  void GiveReturning(const Job& job);
  // A job that leaves and comes back is planned for itself: nothing is kept for it any more.
  void ForgetReturning(const Job& job);
  // Not more than `other` has: what was reserved there is not to be used here.
  void ClipTo(const Capacity& other);

  uint32_t free_slots() const;
  // Left of the guarantee for new claims.
  uint32_t room(uint32_t quota) const { return open_[quota]; }
  uint32_t idle_used(uint32_t quota) const { return idle_used_[quota]; }
  // No guaranteed claims in this quota but what its jobs hold and give back.
  void CloseRoom(uint32_t quota) { open_[quota] = 0; }
  // Free slots that the quota's jobs may use: not those kept for others that don't lend, or for the
  // guaranteed claims of others' jobs that come back.
  uint32_t Usable(uint32_t quota) const;

 private:
  std::optional<std::vector<uint32_t>> Pack(const Job& job, uint32_t workers,
                                            const Capacity* avoid) const;
  bool Leaves(const Job& job, uint32_t guaranteed, uint32_t idle) const;

  const std::vector<Quota>* quotas_;
  std::vector<uint32_t> free_;       // by node
  std::vector<uint32_t> room_;       // by quota: what is left of the guarantee
  std::vector<uint32_t> open_;       // by quota: the part of it that's for new claims
  std::vector<uint32_t> used_;       // by quota: guaranteed slots held
  std::vector<uint32_t> idle_used_;  // by quota
  std::vector<uint32_t> returning_;  // by quota: guaranteed slots of jobs that come back
};

// Why no setting of the cluster could ever run the job on min_workers; nullopt when one can.
std::optional<std::string> NeverFits(const ClusterState& state, const Job& job);

}  // namespace godwit::policy
