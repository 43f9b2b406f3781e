#include "master/testing/sim_world.h"

#include <fmt/core.h>

#include <algorithm>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/random.h"

namespace godwit::master::testing {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr uint64_t kMaxMoves = 60'000;
constexpr size_t kMaxLog = 4'000;
constexpr uint64_t kFresh = 42;

// What the state is after one more step.
uint64_t After(uint64_t content, uint64_t step) { return Mix64(content ^ Mix64(step)); }

std::string Tail(const SaveId& save, uint32_t rank, uint64_t content) {
  return fmt::format("{}/{}/{}/{}/{}", save.term, save.step, save.attempt, rank, content);
}

}  // namespace

SimWorld::SimWorld(const SimOptions& options, uint64_t seed) : options_(options), random_(seed) {
  Config config;
  config.job_id = "job";
  config.nodes = options.nodes;
  config.workers = options.nodes * options.slots;
  config.max_restarts = options.max_restarts;
  if (!options.storage.empty()) config.expected_step = options.storage.rbegin()->first.step;
  state_ = InitialState(config, {}, now_);
  nodes_.resize(options.nodes);
  for (Node& n : nodes_) n.workers.resize(options.slots);
  storage_ = options.storage;
  if (!storage_.empty()) terms_ = storage_.rbegin()->first.term;
}

void SimWorld::Problem(std::string what) {
  problems_.push_back(fmt::format("move {}: {}", moves_, what));
}

uint64_t SimWorld::entered() const { return entered_; }

std::optional<SaveId> SimWorld::committed(const std::vector<SaveId>& distrusted) const {
  // Of the newest term, else of the ones before: here every term goes on from the newest commit.
  for (auto it = storage_.rbegin(); it != storage_.rend(); ++it) {
    if (std::find(distrusted.begin(), distrusted.end(), it->first) == distrusted.end()) {
      return it->first;
    }
  }
  return std::nullopt;
}

bool SimWorld::ReturningAgentIsToldToLeave(uint32_t n) {
  Node& node = nodes_[n];
  node.left = false;
  node.orders.clear();
  node.reports.clear();
  Hello(n);
  while (!node.reports.empty()) {
    const Event event = node.reports.front();
    node.reports.pop_front();
    Deliver(event);
  }
  return !node.orders.empty() && std::holds_alternative<LeaveOrder>(node.orders.back());
}

bool SimWorld::worker_alive(uint32_t rank) const {
  return nodes_[rank / options_.slots].workers[rank % options_.slots].alive;
}

std::string SimWorld::Dump() const {
  std::string text;
  for (uint32_t n = 0; n < nodes_.size(); ++n) {
    const Node& node = nodes_[n];
    text += fmt::format("node {}: attached {} left {} epoch {} orders {} reports {} persists {}\n",
                        n, node.attached, node.left, node.epoch, node.orders.size(),
                        node.reports.size(), node.persists.size());
    for (const Worker& w : node.workers) {
      text += fmt::format(
          "  rank {}: alive {} claimed {} resumed {} finished {} entered {} done {} limit {} "
          "closed "
          "{} told {} park {} stop {} filling {} whole",
          w.rank, w.alive, w.claimed, w.resumed, w.finished, w.entered, w.done, w.limit, w.closed,
          w.at_gate_told, w.park, w.stop, w.filling.has_value());
      for (const SimSnapshot& s : w.whole) text += fmt::format(" ({},{})", s.epoch, s.step);
      if (w.rank < state_.ranks.size()) {
        text += "; master:";
        for (const WholeSnapshot& s : state_.ranks[w.rank].snapshots) {
          text += fmt::format(" ({},{}{})", s.epoch, s.step, s.restorable ? "" : "!");
        }
      }
      text += "\n";
    }
  }
  text += fmt::format("saves {} term {} status {}\n", state_.saves.size(), state_.term,
                      static_cast<int>(state_.term_status));
  return text;
}

void SimWorld::Deliver(const Event& event) {
  const Durable before = state_.durable;
  Decision d = Decide(std::move(state_), event, now_);
  state_ = std::move(d.state);
  if (!d.reason.empty() && log_.size() < kMaxLog) {
    log_.push_back(fmt::format("{} {}", ToNanos(now_) / 1'000'000, d.reason));
  }
  journal_ = state_.durable;
  if (state_.phase != last_phase_) {
    last_phase_ = state_.phase;
    if (state_.phase == Phase::kParking) {
      // The promise: all ranks stand at exactly S, and S is safe in memory or on storage.
      for (const Node& n : nodes_) {
        for (const Worker& w : n.workers) {
          if (!w.alive) continue;
          if (w.entered != state_.agreed_step || w.done != state_.agreed_step) {
            Problem(fmt::format("parking at S = {}, rank {} has entered {} and done {}",
                                state_.agreed_step, w.rank, w.entered, w.done));
          }
        }
      }
    }
  }
  const size_t crash_after = options_.kill_master_one_in > 0 && faults_ < options_.max_faults &&
                                     !d.actions.empty() &&
                                     random_.OneIn(options_.kill_master_one_in)
                                 ? random_.Below(d.actions.size() + 1)
                                 : d.actions.size() + 1;
  for (size_t i = 0; i < d.actions.size(); ++i) {
    if (i == crash_after) break;
    Do(d.actions[i]);
  }
  if (crash_after <= d.actions.size() && !outcome_) {
    ++faults_;
    RestartMaster();
    return;
  }
  CheckInvariants();
}

void SimWorld::Do(const Action& action) {
  std::visit(
      [&](const auto& a) {
        using T = std::decay_t<decltype(a)>;
        if constexpr (std::is_same_v<T, SendOrder>) {
          if (nodes_[a.node].attached) nodes_[a.node].orders.push_back(a.order);
        } else if constexpr (std::is_same_v<T, RefuseAgent>) {
          Problem("an agent was refused: " + a.message);
        } else if constexpr (std::is_same_v<T, ReplyNotice>) {
          replies_.push_back(a);
        } else if constexpr (std::is_same_v<T, ReplyRescind>) {
          rescind_replies_.push_back(a);
        } else if constexpr (std::is_same_v<T, ReportReleased>) {
          released_.push_back((a.node ? "node " : "gpu ") + a.notice_id);
          if (!a.node) {
            for (const Node& n : nodes_) {
              for (const Worker& w : n.workers) {
                if (w.alive && now_ < SaturatingAdd(now_, Duration(1)) &&
                    state_.phase != Phase::kLeaving) {
                  Problem(fmt::format("released(gpu) while rank {} runs", w.rank));
                }
              }
            }
          }
        } else if constexpr (std::is_same_v<T, ReportNotice>) {
          records_.push_back(a.record);
        } else if constexpr (std::is_same_v<T, ReportEvent>) {
        } else if constexpr (std::is_same_v<T, EndMaster>) {
          outcome_ = a.outcome;
        } else {
          storage_queue_.push_back(a);
        }
      },
      action);
}

void SimWorld::CheckInvariants() {
  // What the master believes to be whole everywhere is there, or its fallback is none.
  if (const auto whole = NewestWhole(state_, true)) {
    for (const Node& n : nodes_) {
      if (n.left) continue;
      for (size_t i = 0; i < n.workers.size(); ++i) {
        const Worker& w = n.workers[i];
        const bool has = std::any_of(w.whole.begin(), w.whole.end(), [&](const SimSnapshot& s) {
          return s.epoch == whole->epoch && s.step == whole->step;
        });
        // A keeper's death that is not known yet takes snapshots away.
        const bool lost_underway =
            !n.attached || std::any_of(n.reports.begin(), n.reports.end(), [](const Event& e) {
              return std::holds_alternative<KeeperLost>(e) ||
                     std::holds_alternative<AgentAttached>(e);
            });
        if (!has && !lost_underway) {
          Problem(fmt::format("the newest whole snapshot (epoch {}, step {}) is not in slot {}",
                              whole->epoch, whole->step, i));
        }
      }
    }
  }
  for (const NodeInfo& n : state_.nodes) {
    if (n.reports.size() > 64) Problem("reports pile up");
  }
  if (state_.saves.size() > kMaxSaves) Problem("too many saves in flight");
}

void SimWorld::Report(uint32_t n, Event event) {
  if (nodes_[n].attached) nodes_[n].reports.push_back(std::move(event));
}

void SimWorld::Hello(uint32_t n) {
  Node& node = nodes_[n];
  node.attached = true;
  AgentAttached hello;
  hello.node = n;
  hello.node_id = fmt::format("n{}", n);
  hello.slots = options_.slots;
  for (uint32_t i = 0; i < node.workers.size(); ++i) {
    const Worker& w = node.workers[i];
    SlotReport r;
    r.slot = i;
    r.pid = w.alive ? 100 : 0;
    r.epoch = w.epoch;
    r.rank = w.rank;
    r.world_size = w.world;
    r.claimed = w.claimed;
    if (w.claimed) {
      r.claim = Claim{options_.directory, options_.total_steps, options_.persist_every, {}};
      r.gate = GateState{w.entered, w.limit, w.closed, w.finished};
    }
    r.at_step = w.done;
    r.state = !w.resumed                                                ? WorkerState::kInit
              : w.finished                                              ? WorkerState::kFinished
              : w.closed && w.entered == w.done && w.entered >= w.limit ? WorkerState::kAtGate
                                                                        : WorkerState::kRunning;
    for (const SimSnapshot& s : w.whole) {
      r.snapshots.push_back(
          {s.epoch, s.step, static_cast<uint32_t>(options_.nodes * options_.slots), 1000});
    }
    hello.slot_reports.push_back(std::move(r));
  }
  node.reports.push_back(std::move(hello));
  for (const Worker& w : node.workers) {
    if (w.exit && w.exit->epoch == node.epoch) node.reports.push_back(*w.exit);
  }
}

void SimWorld::Obey(uint32_t n, const Order& order) {
  Node& node = nodes_[n];
  std::visit(
      [&](const auto& o) {
        using T = std::decay_t<decltype(o)>;
        if constexpr (std::is_same_v<T, StartEpochOrder>) {
          if (o.epoch <= node.epoch) return;
          node.epoch = o.epoch;
          node.gone_due.reset();
          for (const SlotRank& sr : o.ranks) {
            Worker& w = node.workers[sr.slot];
            if (w.alive) Problem("an epoch starts while a worker of the last one runs");
            auto whole = std::move(w.whole);
            w = Worker{};
            w.whole = std::move(whole);
            w.started = w.alive = true;
            w.epoch = o.epoch;
            w.rank = sr.rank;
            w.world = o.world_size;
            Report(n, WorkerStarted{n, o.epoch, sr.slot, sr.rank, 100});
          }
        } else if constexpr (std::is_same_v<T, ResumeOrder>) {
          if (o.epoch != node.epoch || o.kind == ResumeKind::kRefused) return;
          for (Worker& w : node.workers) {
            if (!w.alive || w.resumed) continue;
            if (!w.claimed) Problem("a resume decision before the claim");
            w.resumed = true;
            if (o.kind == ResumeKind::kMemory) {
              const SimSnapshot* best = nullptr;
              for (const SimSnapshot& s : w.whole) {
                if (s.step == o.save.step && (best == nullptr || s.epoch > best->epoch)) best = &s;
              }
              if (best == nullptr) {
                Problem(fmt::format("rank {} is to restore step {} from memory and has none",
                                    w.rank, o.save.step));
                return;
              }
              w.content = best->content;
              w.done = w.entered = best->step;
            } else if (o.kind == ResumeKind::kStorage) {
              const auto it = storage_.find(o.save);
              if (it == storage_.end()) {
                Problem("a restore of a save that was never committed");
                return;
              }
              if (options_.damaged.contains(o.save)) {
                End(n, w, 78, 0, "DATA_LOSS: a chunk");
                continue;
              }
              w.content = it->second;
              w.done = w.entered = o.save.step;
            } else {
              if (!storage_.empty()) Problem("a fresh start although there are commits");
              w.content = kFresh;
            }
            w.limit = w.entered;
            w.boundary_seen = true;  // a resumed boundary is not staged again
          }
        } else if constexpr (std::is_same_v<T, CloseGatesOrder>) {
          if (o.epoch != node.epoch) return;
          for (Worker& w : node.workers) {
            if (!w.started || !w.resumed) continue;
            w.closed = true;
            w.limit = w.entered;
            w.at_gate_told = false;
            Report(n, GateReplied{n, o.epoch, w.rank,
                                  GateState{w.entered, w.limit, true, w.finished}});
          }
        } else if constexpr (std::is_same_v<T, SetLimitOrder>) {
          if (o.epoch != node.epoch) return;
          for (Worker& w : node.workers) {
            if (!w.resumed) continue;
            w.closed = true;
            w.limit = o.step;
            w.at_gate_told = false;
          }
        } else if constexpr (std::is_same_v<T, OpenGatesOrder>) {
          if (o.epoch != node.epoch) return;
          for (Worker& w : node.workers) {
            w.closed = false;
            w.stage.reset();
            w.at_gate_told = false;
          }
        } else if constexpr (std::is_same_v<T, StageAtOrder>) {
          if (o.epoch != node.epoch) return;
          for (Worker& w : node.workers) w.stage = o.step;
        } else if constexpr (std::is_same_v<T, PersistOrder>) {
          std::erase_if(node.persists, [&](const PersistOrder& p) { return p.save == o.save; });
          node.persists.push_back(o);
        } else if constexpr (std::is_same_v<T, CommittedOrder>) {
          if (storage_.count(o.save) == 0) Problem("Committed was sent for what is not");
        } else if constexpr (std::is_same_v<T, FreeSnapshotsOrder>) {
          for (Worker& w : node.workers) {
            std::erase_if(w.whole, [&](const SimSnapshot& s) {
              const SnapshotName name{s.epoch, s.step};
              const bool goes = name < SnapshotName{o.epoch, o.below_step} ||
                                std::find(o.drop.begin(), o.drop.end(), name) != o.drop.end();
              if (!goes) return false;
              for (const PersistOrder& p : node.persists) {
                if (p.snapshot_epoch == s.epoch && p.snapshot_step == s.step &&
                    node.written.count({p.save, w.rank}) == 0 &&
                    std::any_of(state_.saves.begin(), state_.saves.end(),
                                [&](const SaveInFlight& f) { return f.save == p.save; })) {
                  Problem(fmt::format("step {} is freed while it is being written", s.step));
                }
              }
              return true;
            });
          }
        } else if constexpr (std::is_same_v<T, ParkWorkersOrder>) {
          if (o.epoch != node.epoch) return;
          for (Worker& w : node.workers) w.park = true;
          node.gone_due = o.epoch;
        } else if constexpr (std::is_same_v<T, StopWorkersOrder>) {
          if (o.epoch != node.epoch) return;
          for (Worker& w : node.workers) w.stop = true;
          node.gone_due = o.epoch;
        } else if constexpr (std::is_same_v<T, LeaveOrder>) {
          node.left = true;
          node.attached = false;
          for (Worker& w : node.workers) w.alive = false;
          node.orders.clear();
          node.reports.clear();
        }
      },
      order);
}

void SimWorld::End(uint32_t n, Worker& w, int code, int signal, const std::string& message) {
  w.alive = false;
  w.filling.reset();
  WorkerExited e;
  e.node = n;
  e.epoch = w.epoch;
  e.rank = w.rank;
  e.exit_code = code;
  e.signal = signal;
  e.message = message;
  e.entered = w.entered;
  w.exit = e;
  Report(n, e);
}

bool SimWorld::CollectiveReady(const Worker& w) const {
  for (const Node& n : nodes_) {
    for (const Worker& other : n.workers) {
      if (!other.alive || other.epoch != w.epoch || other.entered < w.entered) return false;
    }
  }
  return true;
}

// One move of one worker; false when it can't move.
bool SimWorld::StepWorker(uint32_t n, Worker& w) {
  if (!w.alive) return false;
  if (w.stop) {
    End(n, w, 0, 15);
    return true;
  }
  if (!w.claimed) {
    w.claimed = true;
    WorkerClaimed claim;
    claim.node = n;
    claim.epoch = w.epoch;
    claim.rank = w.rank;
    claim.claim = {options_.directory, options_.total_steps, options_.persist_every, {}};
    Report(n, claim);
    return true;
  }
  if (!w.resumed) return false;
  const auto world = static_cast<uint32_t>(options_.nodes * options_.slots);
  const auto whole = [&](uint64_t step) {
    w.whole.push_back({w.epoch, step, w.content});
    Report(n, SnapshotWhole{n, w.rank, {w.epoch, step, world, 1000}});
  };
  if (w.filling && (random_.OneIn(3) || w.entered > w.done)) {
    if (w.whole.size() < kSnapshotSlots) {
      w.whole.push_back(*w.filling);
      Report(n, SnapshotWhole{n, w.rank, {w.filling->epoch, w.filling->step, world, 1000}});
    }
    w.filling.reset();
    return true;
  }
  if (w.entered > w.done) {  // in a step
    if (options_.hung_rank == w.rank && notice_seen_) return false;
    if (!CollectiveReady(w)) return false;
    ++w.done;
    w.content = After(w.content, w.done);
    w.boundary_seen = false;
    w.at_gate_told = false;
    return true;
  }
  if (!w.boundary_seen) {
    w.boundary_seen = true;
    if (options_.snapshot_every > 0 && w.done % options_.snapshot_every == 0 && !w.filling &&
        w.whole.size() < kSnapshotSlots && w.done < options_.total_steps) {
      w.filling = SimSnapshot{w.epoch, w.done, w.content};
      return true;
    }
  }
  const auto has = [&](uint64_t step) {
    return std::any_of(w.whole.begin(), w.whole.end(), [&](const SimSnapshot& s) {
      return s.step == step && s.content == w.content && s.epoch == w.epoch;
    });
  };
  if (w.done == options_.total_steps) {
    if (w.park) {
      End(n, w, 0, 0);
      return true;
    }
    if (w.finished) return false;
    if (!has(w.done)) {
      if (w.whole.size() + (w.filling ? 1 : 0) >= kSnapshotSlots) return false;
      whole(w.done);
    }
    w.finished = true;
    Report(n, WorkerFinished{n, w.epoch, w.rank, w.done});
    return true;
  }
  if (w.closed && w.entered >= w.limit) {
    if (!w.at_gate_told) {
      w.at_gate_told = true;
      Report(n, WorkerAtGate{n, w.epoch, w.rank, w.done});
      return true;
    }
    if (w.stage == w.done && !has(w.done)) {
      if (w.filling || w.whole.size() >= kSnapshotSlots) return false;
      whole(w.done);
      return true;
    }
    if (w.park) {
      End(n, w, 75, 0);
      return true;
    }
    return false;
  }
  ++w.entered;
  entered_ = std::max(entered_, w.entered);
  w.at_gate_told = false;
  return true;
}

bool SimWorld::Move() {
  if (outcome_) return false;
  ++moves_;
  now_ += microseconds(random_.Between(10, 1500));
  // Faults first, so that they can hit any moment.
  const auto fault = [&](uint32_t one_in) {
    return one_in > 0 && faults_ < options_.max_faults && random_.OneIn(one_in);
  };
  if (fault(options_.break_stream_one_in)) {
    ++faults_;
    BreakStream(static_cast<uint32_t>(random_.Below(nodes_.size())));
  }
  if (fault(options_.kill_worker_one_in)) {
    const auto rank = static_cast<uint32_t>(random_.Below(options_.nodes * options_.slots));
    if (worker_alive(rank)) {
      ++faults_;
      KillWorker(rank);
    }
  }
  if (fault(options_.kill_keeper_one_in)) {
    ++faults_;
    KillKeeper(static_cast<uint32_t>(random_.Below(nodes_.size())));
  }
  for (uint32_t n = 0; n < nodes_.size(); ++n) {
    Node& node = nodes_[n];
    if (node.left || node.attached || !random_.OneIn(8)) continue;
    Hello(n);
  }
  if (const auto timer = NextTimer(state_); timer && *timer <= now_) {
    Deliver(Tick{});
    return !outcome_;
  }
  // A random one of what can happen; when nothing can, time passes until the next timer.
  const size_t kinds = nodes_.size() * (3 + options_.slots) + 1;
  const size_t first = random_.Below(kinds);
  for (size_t i = 0; i < kinds; ++i) {
    const size_t pick = (first + i) % kinds;
    if (pick == kinds - 1) {
      if (storage_queue_.empty()) continue;
      const Action action = storage_queue_.front();
      storage_queue_.pop_front();
      const bool fails =
          options_.fail_storage_one_in > 0 && random_.OneIn(options_.fail_storage_one_in);
      const Status status = fails ? UnknownError("I/O error") : OkStatus();
      if (std::holds_alternative<ProbeStorage>(action)) {
        const auto& distrusted = std::get<ProbeStorage>(action).distrusted;
        Probed probed{status, committed(distrusted), "", std::nullopt};
        if (probed.newest != committed()) probed.damaged = committed();
        Deliver(probed);
      } else if (std::holds_alternative<BeginTerm>(action)) {
        if (fails) {
          Deliver(TermBegun{status, 0, std::nullopt, ""});
        } else {
          const auto& distrusted = std::get<BeginTerm>(action).distrusted;
          Deliver(TermBegun{status, ++terms_, committed(distrusted), ""});
        }
      } else if (const auto* commit = std::get_if<CommitSave>(&action)) {
        std::optional<uint64_t> content;
        if (commit->tails.size() != options_.nodes * options_.slots) Problem("too few tails");
        for (uint32_t r = 0; r < commit->tails.size(); ++r) {
          const uint64_t c = std::stoull(commit->tails[r].substr(commit->tails[r].rfind('/') + 1));
          if (commit->tails[r] != Tail(commit->save, r, c)) Problem("a tail of another pack");
          if (content && *content != c) Problem("packs of different states in one commit");
          content = c;
        }
        if (commit->save.term < terms_) {
          Deliver(CommitDone{commit->save, AbortedError("superseded"), 0, Duration(0)});
        } else {
          if (!fails) storage_[commit->save] = *content;
          Deliver(CommitDone{commit->save, status, 1000, milliseconds(1)});
        }
      }
      return !outcome_;
    }
    const auto n = static_cast<uint32_t>(pick / (3 + options_.slots));
    const size_t what = pick % (3 + options_.slots);
    Node& node = nodes_[n];
    if (node.left) continue;
    if (what == 0) {
      if (node.orders.empty()) continue;
      const Order order = node.orders.front();
      node.orders.pop_front();
      Obey(n, order);
      if (node.left) Deliver(AgentDetached{n});
      return !outcome_;
    }
    if (what == 1) {
      if (node.reports.empty()) {
        if (node.attached && now_ - node.beat > milliseconds(500)) {
          node.beat = now_;
          Heartbeat beat;
          beat.node = n;
          for (const Worker& w : node.workers) {
            beat.ranks.push_back(
                {w.epoch, w.rank, w.entered, milliseconds(1), milliseconds(2), Duration(0), 1000});
          }
          Deliver(beat);
          return !outcome_;
        }
        continue;
      }
      const Event report = node.reports.front();
      node.reports.pop_front();
      const bool twice = options_.duplicate_one_in > 0 &&
                         random_.OneIn(options_.duplicate_one_in) &&
                         !std::holds_alternative<AgentAttached>(report);
      Deliver(report);
      if (twice && !outcome_ && node.attached) Deliver(report);
      return !outcome_;
    }
    if (what == 2) {
      // The agent's own work: packs, and telling that nobody is left.
      if (!node.persists.empty() && !random_.OneIn(3)) {
        PersistOrder& p = node.persists.front();
        bool all = true;
        for (Worker& w : node.workers) {
          if (node.written.count({p.save, w.rank}) > 0) {
            continue;
          }
          const auto it = std::find_if(w.whole.begin(), w.whole.end(), [&](const SimSnapshot& s) {
            return s.epoch == p.snapshot_epoch && s.step == p.snapshot_step;
          });
          all = false;
          if (it == w.whole.end()) {
            Report(n, PackFailed{n, p.save, w.rank, NotFoundError("no such snapshot")});
            node.persists.erase(node.persists.begin());
            return true;
          }
          if (options_.fail_storage_one_in > 0 && random_.OneIn(options_.fail_storage_one_in)) {
            Report(n, PackFailed{n, p.save, w.rank, ResourceExhaustedError("disk full")});
            node.persists.erase(node.persists.begin());
            return true;
          }
          node.written[{p.save, w.rank}] = PackWritten{
              n, p.save, w.rank, Tail(p.save, w.rank, it->content), 500, milliseconds(1)};
          break;
        }
        if (all) {
          for (const Worker& w : node.workers) Report(n, node.written[{p.save, w.rank}]);
          node.persists.erase(node.persists.begin());
        }
        return true;
      }
      if (node.gone_due && std::none_of(node.workers.begin(), node.workers.end(),
                                        [](const Worker& w) { return w.alive; })) {
        Report(n, WorkersGone{n, *node.gone_due});
        node.gone_due.reset();
        return true;
      }
      continue;
    }
    if (StepWorker(n, node.workers[what - 3])) return true;
  }
  if (const auto timer = NextTimer(state_)) {
    // An agent that lives is heard; only what nobody will say is waited for.
    MonotonicTime next = std::max(now_, *timer);
    for (Node& node : nodes_) {
      if (!node.attached && !node.left) return true;  // is about to attach
      if (node.attached) next = std::min(next, std::max(now_, node.beat + milliseconds(501)));
    }
    now_ = next;
  }
  return true;
}

void SimWorld::RunUntil(const std::function<bool()>& stop) {
  while (!outcome_ && !stop()) {
    if (!problems_.empty()) return;
    if (moves_ > kMaxMoves) {
      Problem(fmt::format("no end in sight in phase {}", PhaseName(state_.phase)));
      return;
    }
    Move();
  }
}

void SimWorld::Notice(const std::string& id, Duration time_left, bool stop) {
  notice_seen_ = true;
  NoticeReceived e;
  e.id = id;
  e.reason = "reclaim";
  e.time_left = time_left;
  e.stop = stop;
  Deliver(e);
}

void SimWorld::Rescind(const std::string& id) { Deliver(RescindReceived{id, 0}); }

void SimWorld::KillWorker(uint32_t rank, int exit_code, int signal) {
  const uint32_t n = rank / options_.slots;
  Worker& w = nodes_[n].workers[rank % options_.slots];
  if (w.alive) End(n, w, exit_code, signal);
}

void SimWorld::KillKeeper(uint32_t node) {
  Node& n = nodes_[node];
  if (n.left) return;
  for (Worker& w : n.workers) {
    w.alive = false;
    w.exit.reset();
    w.filling.reset();
    // The agent's own mapping could still be written out; here it can't: the harder case.
    w.whole.clear();
  }
  n.gone_due.reset();
  Report(node, KeeperLost{node, "killed"});
}

void SimWorld::BreakStream(uint32_t node) {
  Node& n = nodes_[node];
  if (!n.attached) return;
  const bool keeper_lost = std::any_of(n.reports.begin(), n.reports.end(), [](const Event& e) {
    return std::holds_alternative<KeeperLost>(e);
  });
  n.attached = false;
  n.orders.clear();
  n.reports.clear();
  if (keeper_lost) {  // shows as workers that are gone
    for (Worker& w : n.workers) w.exit.reset();
  }
  Deliver(AgentDetached{node});
}

void SimWorld::RestartMaster() {
  for (Node& n : nodes_) {
    n.attached = false;
    n.orders.clear();
    n.reports.clear();
  }
  storage_queue_.clear();
  state_ = InitialState(state_.config, journal_, now_);
  last_phase_ = state_.phase;
  Deliver(Tick{});
}

}  // namespace godwit::master::testing
