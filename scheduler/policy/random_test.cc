// Random clusters and histories; after each decision the promises of the policy are checked.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "scheduler/policy/capacity.h"
#include "scheduler/policy/decide.h"

namespace godwit::policy {
namespace {

class History {
 public:
  explicit History(uint64_t seed) : random_(seed) {
    const uint64_t nodes = 1 + random_.Below(5);
    for (uint64_t i = 0; i < nodes; ++i) {
      state_.nodes.push_back(
          {"node-" + std::to_string(i), static_cast<uint32_t>(1 + random_.Below(4))});
    }
    uint32_t left = state_.Capacity();
    const uint64_t quotas = 1 + random_.Below(4);
    for (uint64_t i = 0; i < quotas; ++i) {
      Quota quota;
      quota.name = "quota-" + std::to_string(i);
      quota.guaranteed = static_cast<uint32_t>(random_.Below(left + 1));
      left -= quota.guaranteed;
      quota.lendable = !random_.OneIn(4);
      if (random_.OneIn(4)) {
        quota.max = quota.guaranteed + static_cast<uint32_t>(random_.Below(4));
      }
      if (random_.OneIn(3)) quota.queue = QueueStrategy::kStrictFifo;
      state_.quotas.push_back(quota);
    }
    state_.grow_after = std::chrono::seconds(static_cast<int64_t>(random_.Below(10)));
  }

  // False (with a gtest failure) when a promise is broken.
  bool Run(int events) {
    for (int i = 0; i < events; ++i) {
      if (!RandomEvent()) return false;
    }
    return Settle() && Drain();
  }

 private:
  std::vector<std::string> In(Phase phase) const {
    std::vector<std::string> ids;
    for (const auto& [id, job] : state_.jobs) {
      if (job.phase == phase) ids.push_back(id);
    }
    return ids;
  }
  std::string Pick(const std::vector<std::string>& ids) { return ids[random_.Below(ids.size())]; }

  bool Submit() {
    Job job;
    job.id = "job-" + std::to_string(++submitted_);
    job.seniority = submitted_;
    job.quota = static_cast<uint32_t>(random_.Below(state_.quotas.size()));
    job.idle = static_cast<IdleUse>(random_.Below(3));
    job.job_class = static_cast<JobClass>(random_.Below(3));
    job.min_workers = static_cast<uint32_t>(1 + random_.Below(4));
    job.max_workers = job.min_workers + static_cast<uint32_t>(random_.Below(4));
    job.slots_per_worker = random_.OneIn(4) ? 2 : 1;
    if (NeverFits(state_, job)) return true;
    return Do(JobSubmitted{job});
  }

  bool RandomEvent() {
    now_ += std::chrono::milliseconds(random_.Below(3000));
    const auto starting = In(Phase::kStarting);
    const auto running = In(Phase::kRunning);
    const auto leaving = In(Phase::kLeaving);
    const auto waiting = In(Phase::kWaiting);
    switch (random_.Below(9)) {
      case 0:
      case 1:
      case 2:
        return Submit();
      case 3:
        return starting.empty() || Do(JobRunning{Pick(starting)});
      case 4:
        return running.empty() || Do(JobReleased{Pick(running), random_.OneIn(3)});
      case 5:
        return leaving.empty() || Do(JobReleased{Pick(leaving), !random_.OneIn(5)});
      case 6:
        return waiting.empty() || !random_.OneIn(4) || Do(JobReleased{Pick(waiting), false});
      case 7:
        return running.empty() ||
               Do(JobLeaving{Pick(running),
                             random_.OneIn(2) ? LeaveReason::kOperator : LeaveReason::kStop});
      default:
        return Do(Tick{});
    }
  }

  // Nobody submits or ends any more: in the end nothing moves.
  bool Settle() {
    size_t moves = 0;
    while (true) {
      const auto starting = In(Phase::kStarting);
      const auto leaving = In(Phase::kLeaving);
      if (!starting.empty()) {
        if (!Do(JobRunning{starting[0]})) return false;
      } else if (!leaving.empty()) {
        const bool ends = state_.jobs.at(leaving[0]).leave == LeaveReason::kStop;
        if (!Do(JobReleased{leaving[0], !ends})) return false;
      } else {
        now_ += std::chrono::hours(10);
        const size_t before = actions_;
        if (!Do(Tick{})) return false;
        if (actions_ == before) break;
      }
      if (++moves > 50 * (state_.jobs.size() + 1)) {
        ADD_FAILURE() << "jobs are moved for ever";
        return false;
      }
    }
    for (const auto& [id, job] : state_.jobs) {
      if (job.phase == Phase::kWaiting && job.wait.kind == WaitKind::kRelease) {
        ADD_FAILURE() << id << " waits for a release, but nobody leaves";
        return false;
      }
      const bool head = job.phase == Phase::kWaiting && job.wait.kind != WaitKind::kBehind;
      if (head && Capacity(state_, Capacity::At::kNow).Allocate(job, job.min_workers)) {
        ADD_FAILURE() << id << " waits, but fits: " << job.wait.text;
        return false;
      }
      // An ordinary job inside its quota never waits for idle jobs that could make room.
      if (head && job.idle == IdleUse::kForbid) {
        const Capacity released(state_, Capacity::At::kReleased);
        if (released.room(job.quota) >= job.min_workers * job.slots_per_worker &&
            std::holds_alternative<Certificate>(PlanReclaim(state_, job, released))) {
          ADD_FAILURE() << id << " waits, but idle jobs could make room: " << job.wait.text;
          return false;
        }
      }
    }
    return true;
  }

  // Running jobs end one by one: every job runs and ends.
  bool Drain() {
    for (size_t rounds = 0; !state_.jobs.empty(); ++rounds) {
      const auto running = In(Phase::kRunning);
      if (running.empty()) {
        ADD_FAILURE() << "no job runs, but some wait: " << state_.jobs.begin()->second.wait.text;
        return false;
      }
      if (!Do(JobReleased{Pick(running), false}) || !Settle()) return false;
    }
    return true;
  }

  bool Do(const Event& event) {
    const ClusterState before = state_;
    const Decision decision = Decide(state_, event, now_);
    actions_ += decision.actions.size();
    CheckState();
    CheckActions(before, decision);
    return !::testing::Test::HasFailure();
  }

  void CheckState() {
    std::vector<uint32_t> used(state_.nodes.size(), 0);
    for (const auto& [id, job] : state_.jobs) {
      if (job.phase == Phase::kWaiting) {
        EXPECT_TRUE(job.workers.empty()) << id;
        EXPECT_NE(job.wait.text, "") << id << " does not say why it waits";
        EXPECT_NE(job.wait.kind, WaitKind::kNone) << id;
        continue;
      }
      EXPECT_GE(job.workers.size(), job.min_workers) << id << " is less than its gang";
      EXPECT_LE(job.workers.size(), job.max_workers) << id;
      for (const WorkerPlace& worker : job.workers) used[worker.node] += job.slots_per_worker;
      EXPECT_TRUE(job.idle != IdleUse::kForbid || job.Slots(Claim::kIdle) == 0) << id;
      EXPECT_TRUE(job.idle != IdleUse::kOnly || job.Slots(Claim::kGuaranteed) == 0) << id;
    }
    for (size_t i = 0; i < used.size(); ++i) {
      EXPECT_LE(used[i], state_.nodes[i].slots) << state_.nodes[i].name << " is overfull";
    }
    for (uint32_t q = 0; q < state_.quotas.size(); ++q) {
      EXPECT_LE(state_.Used(q, Claim::kGuaranteed), state_.quotas[q].guaranteed)
          << state_.quotas[q].name;
    }
  }

  void CheckActions(const ClusterState& before, const Decision& decision) {
    std::set<std::string> touched;
    std::map<std::string, std::pair<Certificate, size_t>> certificates;
    for (const Action& action : decision.actions) {
      if (const auto* start = std::get_if<StartJob>(&action)) {
        EXPECT_TRUE(touched.insert(start->job).second) << start->job;
        EXPECT_EQ(start->workers, state_.jobs.at(start->job).workers);
        const uint32_t quota = state_.jobs.at(start->job).quota;
        if (const auto max = state_.quotas[quota].max) {
          EXPECT_LE(state_.Used(quota, Claim::kIdle),
                    std::max(*max, before.Used(quota, Claim::kIdle)));
        }
      } else if (const auto* notify = std::get_if<NotifyJob>(&action)) {
        EXPECT_TRUE(touched.insert(notify->job).second) << notify->job;
        EXPECT_EQ(state_.jobs.at(notify->job).phase, Phase::kLeaving);
        if (notify->reason == LeaveReason::kReclaim) {
          ASSERT_TRUE(notify->certificate.has_value());
          EXPECT_GT(state_.jobs.at(notify->job).Slots(Claim::kIdle), 0u)
              << notify->job << " holds nothing but its guarantee";
          EXPECT_EQ(state_.jobs.at(notify->preemptor).idle, IdleUse::kForbid);
          EXPECT_EQ(state_.jobs.at(notify->preemptor).wait.kind, WaitKind::kRelease);
          auto& entry = certificates[notify->preemptor];
          entry.first = *notify->certificate;
          ++entry.second;
        } else {
          EXPECT_FALSE(notify->certificate.has_value());
        }
      }
    }
    // A certificate can be checked from the state alone when nothing else was reserved.
    size_t reserved = 0;
    for (const auto& [id, job] : state_.jobs) {
      if (job.wait.kind == WaitKind::kRelease) ++reserved;
      if (job.phase == Phase::kLeaving && job.leave == LeaveReason::kGrow) ++reserved;
    }
    if (certificates.size() != 1 || reserved != 1) return;
    const auto& [certificate, notices] = certificates.begin()->second;
    if (notices != certificate.victims.size()) return;  // one of them had not started yet
    ClusterState then = state_;
    for (const auto& victim : certificate.victims) {
      then.jobs.at(victim.job).phase = Phase::kRunning;
    }
    EXPECT_TRUE(CheckCertificate(then, certificate).ok()) << CheckCertificate(then, certificate);
    ++checked_certificates;
  }

 public:
  static size_t checked_certificates;

 private:
  Random random_;
  ClusterState state_;
  MonotonicTime now_ = MonotonicTime(std::chrono::seconds(1));
  uint64_t submitted_ = 0;
  size_t actions_ = 0;
};
size_t History::checked_certificates = 0;

TEST(PolicyRandomTest, PromisesHoldInRandomHistories) {
  const char* fixed = std::getenv("GODWIT_TEST_SEED");
  const uint64_t base = fixed != nullptr ? std::strtoull(fixed, nullptr, 10) : SystemRandom64();
  const int histories = fixed != nullptr ? 1 : 500;
  for (int i = 0; i < histories; ++i) {
    const uint64_t seed = base + static_cast<uint64_t>(i);
    SCOPED_TRACE("GODWIT_TEST_SEED=" + std::to_string(seed));
    if (!History(seed).Run(120)) return;
  }
  if (fixed == nullptr) {
    EXPECT_GT(History::checked_certificates, 50u);
  }
}

}  // namespace
}  // namespace godwit::policy
