#include "master/process/engine.h"

#include <fmt/core.h>

#include <set>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/log.h"
#include "base/random.h"
#include "master/ops/convert.h"

namespace godwit::master {
namespace {

uint64_t UnixMs(const Clock& clock) {
  return static_cast<uint64_t>(clock.WallUnix() / std::chrono::milliseconds(1));
}

std::string Describe(const std::vector<ckpt::Rejected>& rejected) {
  std::string text;
  for (const ckpt::Rejected& r : rejected) {
    if (text.size() > 1024) break;
    if (!text.empty()) text += "; ";
    text += fmt::format("step {}: {}", r.save.step, r.reason);
  }
  return text;
}

std::set<SaveId> AsSet(const std::vector<SaveId>& saves) { return {saves.begin(), saves.end()}; }

}  // namespace

Engine::Engine(const Options& options) : options_(options) {}

Engine::~Engine() = default;

void Engine::Start(Config config) {
  Durable durable;
  if (options_.journal->recovered()) {
    durable = *options_.journal->recovered();
    if (!options_.journal->same_boot() && durable.notice) {
      // Its deadline was counted on a clock that is gone, and so are the workers: it is over.
      for (NoticePart& part : durable.notice->parts) {
        part.received = part.deadline = options_.clock->Monotonic();
      }
      durable.notice->parked_at.reset();
      durable.notice->released_gpu_at.reset();
      durable.notice->committed_at.reset();
    }
  }
  state_ = InitialState(config, durable, options_.clock->Monotonic());
  if (options_.scheduler != nullptr) {
    options_.scheduler->Acknowledged(durable.acknowledged_directive);
  }
  Handle(Tick{});
}

void Engine::Handle(const Event& event) {
  if (!state_ || exit_code_) return;
  const Durable before = state_->durable;
  const Phase phase = state_->phase;
  Decision decision =
      Decide(std::move(*state_), event, options_.clock->Monotonic(), UnixMs(*options_.clock));
  state_ = std::move(decision.state);
  if (!decision.reason.empty()) LogInfo("{}", decision.reason);
  if (!(state_->durable == before)) {
    if (Status s = options_.journal->Append(state_->durable); !s.ok()) {
      // The job is worth more than the ability to restart its master: go on, and say so.
      LogError("journal: {}", s.message());
      if (!journal_alarm_ && options_.scheduler != nullptr) {
        proto::Event alarm;
        alarm.set_kind("alarm");
        alarm.set_message(Utf8("the master's journal can't be written: " + s.message()));
        alarm.set_unix_ms(UnixMs(*options_.clock));
        options_.scheduler->Happened(alarm);
      }
      journal_alarm_ = true;
    } else {
      journal_alarm_ = false;
    }
  }
  if (before.epoch != state_->durable.epoch) AnswerKv(kv_.BeginEpoch(state_->durable.epoch));
  for (const Action& action : decision.actions) Do(action);
  if (options_.scheduler != nullptr) {
    if (state_->durable.acknowledged_directive != before.acknowledged_directive) {
      options_.scheduler->Acknowledged(state_->durable.acknowledged_directive);
    }
    if (phase != state_->phase) options_.scheduler->StatusChanged();
  }
  ArmTimers();
}

void Engine::ArmTimers() {
  std::optional<MonotonicTime> next = NextTimer(*state_);
  if (const auto kv = kv_.NextDeadline(); kv && (!next || *kv < *next)) next = kv;
  if (next == timer_at_) return;
  if (timer_ != 0) options_.loop->CancelTimer(timer_);
  timer_ = 0;
  timer_at_ = next;
  if (!next) return;
  timer_ = options_.loop->AddTimer(*next, [this] {
    timer_ = 0;
    timer_at_.reset();
    AnswerKv(kv_.Expire(options_.clock->Monotonic()));
    Handle(Tick{});
  });
}

void Engine::Store(std::function<void()> call) {
  if (Status s = storage_thread_.Post(std::move(call)); !s.ok()) {
    // Cannot happen while the decisions ask for one thing at a time; each has a timer of its own.
    LogError("storage: {}", s.message());
  }
}

void Engine::Do(const Action& action) {
  // Results come back through the loop; when it is gone they are of no use.
  const auto post = [this](Event event) {
    (void)options_.loop->Post([this, event = std::move(event)] { Handle(event); });
  };
  std::visit(
      [&](const auto& a) {
        using T = std::decay_t<decltype(a)>;
        if constexpr (std::is_same_v<T, SendOrder>) {
          const auto it = streams_.find(a.node);
          if (it != streams_.end()) it->second->Send(ToProto(a.order, state_->config));
        } else if constexpr (std::is_same_v<T, RefuseAgent>) {
          refused_ = a.message;
        } else if constexpr (std::is_same_v<T, ProbeStorage>) {
          Store([this, post, a] {
            Probed out;
            auto found = options_.storage->FindNewest(a.directory, AsSet(a.distrusted));
            out.status = found.status();
            if (found.ok()) {
              if (found->newest) out.newest = found->newest->save;
              out.rejected = Describe(found->rejected);
              for (const ckpt::Rejected& r : found->rejected) {
                if (r.damaged && !out.damaged) out.damaged = r.save;  // newest first
              }
            }
            post(std::move(out));
          });
        } else if constexpr (std::is_same_v<T, BeginTerm>) {
          Store([this, post, a, job = state_->config.job_id] {
            TermBegun out;
            auto term = options_.storage->BeginTerm(a.directory, job, UnixMs(*options_.clock),
                                                    AsSet(a.distrusted));
            out.status = term.status();
            if (term.ok()) {
              out.term = term->record.term;
              if (term->found.newest) out.newest = term->found.newest->save;
              out.rejected = Describe(term->found.rejected);
            }
            post(std::move(out));
          });
        } else if constexpr (std::is_same_v<T, CommitSave>) {
          Store([this, post, a] {
            const MonotonicTime start = options_.clock->Monotonic();
            auto commit = options_.storage->CommitSave(a.directory, a.save, a.tails);
            post(CommitDone{a.save, commit.status(), commit.ok() ? commit->bytes : 0,
                            options_.clock->Monotonic() - start});
          });
        } else if constexpr (std::is_same_v<T, RetainSaves>) {
          // Deleting can take long: not in the way of the next commit. When the thread is behind,
          // the next commit's turn does this one's work too.
          Status posted = retain_thread_.Post([this, a] {
            if (Status s = options_.storage->Retain(a.directory, a.term, a.keep); !s.ok()) {
              LogWarning("retention in {}: {}", a.directory, s.message());
            }
          });
          if (!posted.ok()) LogWarning("retention in {}: {}", a.directory, posted.message());
        } else if constexpr (std::is_same_v<T, ReplyNotice>) {
          const proto::NoticeReply reply = ToProto(a);
          if (options_.scheduler != nullptr) options_.scheduler->Ack(reply);
          if (auto node = notify_waiting_.extract(a.id)) {
            for (const NotifyDone& done : node.mapped()) done(reply);
          }
        } else if constexpr (std::is_same_v<T, ReplyRescind>) {
          proto::RescindReply reply;
          reply.set_accepted(a.accepted);
          reply.set_message(Utf8(a.message));
          if (auto node = rescind_waiting_.extract(a.id)) {
            for (const RescindDone& done : node.mapped()) done(reply);
          }
        } else if constexpr (std::is_same_v<T, ReportReleased>) {
          if (options_.scheduler != nullptr) options_.scheduler->Released(a.notice_id, a.node);
        } else if constexpr (std::is_same_v<T, ReportNotice>) {
          if (options_.scheduler != nullptr) options_.scheduler->Notice(ToProto(a.record));
        } else if constexpr (std::is_same_v<T, ReportEvent>) {
          if (a.kind == "alarm") LogWarning("{}", a.message);
          if (options_.scheduler == nullptr) return;
          proto::Event event;
          event.set_job_id(state_->config.job_id);
          event.set_unix_ms(UnixMs(*options_.clock));
          event.set_kind(a.kind);
          event.set_message(Utf8(a.message));
          event.set_data_json(Utf8(a.data_json));
          options_.scheduler->Happened(event);
        } else {
          static_assert(std::is_same_v<T, EndMaster>);
          LogInfo("outcome: {}: {}", OutcomeName(a.outcome.state), a.outcome.reason);
          if (options_.scheduler != nullptr) {
            options_.scheduler->Finish(ToProto(a.outcome));
          } else {
            Quit(a.outcome.exit_code);
          }
        }
      },
      action);
}

void Engine::OnOutcomeDelivered() {
  if (state_ && state_->phase == Phase::kEnded) Quit(state_->durable.outcome->exit_code);
}

void Engine::Quit(int exit_code) {
  if (!exit_code_) exit_code_ = exit_code;
  options_.loop->Stop();
}

// ---- agents ----

bool Engine::PostReport(std::shared_ptr<AgentStream> stream, proto::AgentReport report) {
  return options_.loop
      ->Post([this, stream = std::move(stream), report = std::move(report)] {
        OnReport(stream, report);
      })
      .ok();
}

void Engine::PostDetached(std::shared_ptr<AgentStream> stream) {
  Status posted = options_.loop->Post([this, stream = std::move(stream)] { OnDetached(stream); });
  // Then the agent counts as silent, and is given up or attaches again.
  if (!posted.ok()) LogError("a broken stream: {}", posted.message());
}

void Engine::OnReport(const std::shared_ptr<AgentStream>& stream,
                      const proto::AgentReport& report) {
  if (exit_code_) return stream->Close();
  if (report.has_hello()) return OnHello(stream, report);
  for (const auto& [node, current] : streams_) {
    if (current != stream) continue;
    if (report.has_kv_request()) return OnKv(node, report.kv_request());
    if (const auto event = ToEvent(node, report)) Handle(*event);
    return;
  }
  // Of a stream that was replaced, or that never said Hello.
}

void Engine::OnHello(const std::shared_ptr<AgentStream>& stream, const proto::AgentReport& report) {
  const proto::Hello& hello = report.hello();
  const auto refuse = [&](const std::string& why) {
    LogWarning("agent of node {} is refused: {}", hello.node_index(), why);
    proto::MasterOrder order;
    order.mutable_welcome()->set_refused(Utf8(why));
    stream->Send(std::move(order));
    stream->Close();
  };
  if (!state_) {
    // The job is not known yet (the scheduler was not reached): the agent tries again.
    return stream->Close();
  }
  if (hello.job_id() != state_->config.job_id) {
    return refuse(fmt::format("this is the master of job '{}', not '{}'", state_->config.job_id,
                              hello.job_id()));
  }
  const uint32_t node = hello.node_index();
  const auto old = streams_.find(node);
  std::shared_ptr<AgentStream> replaced = old == streams_.end() ? nullptr : old->second;
  if (replaced != nullptr && replaced != stream) {
    // A second stream of the node replaces the first.
    streams_.erase(old);
    kv_.Forget(node);
    Handle(AgentDetached{node});
    replaced->Close();
  }
  streams_[node] = stream;
  proto::MasterOrder welcome;
  welcome.mutable_welcome()->set_epoch(state_->durable.epoch);
  welcome.mutable_welcome()->set_term(state_->term);
  refused_.reset();
  // The first words must be the welcome, and whether it is one is what the decision says.
  class Held : public AgentStream {
   public:
    void Send(proto::MasterOrder order) override { orders.push_back(std::move(order)); }
    void Close() override {}
    std::vector<proto::MasterOrder> orders;
  };
  auto held = std::make_shared<Held>();
  streams_[node] = held;
  Handle(*ToEvent(node, report));
  if (refused_) {
    streams_.erase(node);
    return refuse(*refused_);
  }
  streams_[node] = stream;
  stream->Send(std::move(welcome));
  for (proto::MasterOrder& order : held->orders) stream->Send(std::move(order));
}

void Engine::OnDetached(const std::shared_ptr<AgentStream>& stream) {
  for (auto it = streams_.begin(); it != streams_.end(); ++it) {
    if (it->second != stream) continue;
    const uint32_t node = it->first;
    streams_.erase(it);
    kv_.Forget(node);
    Handle(AgentDetached{node});
    return;
  }
}

void Engine::OnKv(uint32_t node, const proto::KvRequest& request) {
  const KvExchange::Asker asker{node, request.rank(), request.request()};
  if (request.epoch() != state_->durable.epoch) {
    AnswerKv({{asker,
               AbortedError(fmt::format("epoch {} is over, this is epoch {}", request.epoch(),
                                        state_->durable.epoch)),
               ""}});
    return;
  }
  (void)kv_.BeginEpoch(request.epoch());  // an adopted one: nobody waits yet
  if (request.set()) {
    AnswerKv(kv_.Set(asker, request.key(), request.value()));
  } else {
    const auto timeout = std::chrono::milliseconds(request.timeout_ms());
    AnswerKv(kv_.Get(asker, request.key(), SaturatingAdd(options_.clock->Monotonic(), timeout)));
  }
  ArmTimers();
}

void Engine::AnswerKv(const std::vector<KvExchange::Answer>& answers) {
  for (const KvExchange::Answer& answer : answers) {
    const auto it = streams_.find(answer.asker.node);
    if (it == streams_.end()) continue;
    proto::MasterOrder order;
    auto* reply = order.mutable_kv_reply();
    reply->set_epoch(kv_.epoch());
    reply->set_rank(answer.asker.rank);
    reply->set_request(answer.asker.request);
    reply->set_code(static_cast<int32_t>(answer.status.code()));
    reply->set_value(answer.status.ok() ? answer.value : answer.status.message());
    it->second->Send(std::move(order));
  }
}

// ---- notices ----

bool Engine::PostNotice(proto::NoticeRequest request, uint64_t directive, NotifyDone done) {
  return options_.loop
      ->Post([this, request = std::move(request), directive, done = std::move(done)]() mutable {
        proto::NoticeReply reply;
        reply.set_id(request.id());
        if (!state_ || exit_code_) {
          reply.set_message("the job has not started or is over");
          if (done) done(reply);
          return;
        }
        if (request.id().empty()) {
          request.set_id(fmt::format("{}-by-hand-{:08x}-{}", state_->config.job_id,
                                     static_cast<uint32_t>(SystemRandom64()), ++notices_made_));
        }
        const NoticeReceived event = ToEvent(request, directive);
        if (done) notify_waiting_[event.id].push_back(std::move(done));
        Handle(event);
      })
      .ok();
}

bool Engine::PostStop(std::string id, std::string reason, Duration grace, uint64_t directive) {
  return options_.loop
      ->Post([this, id = std::move(id), reason = std::move(reason), grace, directive] {
        NoticeReceived event;
        event.id = id;
        event.reason = reason.empty() ? "stopped" : reason;
        event.time_left = grace;
        event.directive = directive;
        event.stop = true;
        Handle(event);
      })
      .ok();
}

bool Engine::PostRescind(std::string id, uint64_t directive, RescindDone done) {
  return options_.loop
      ->Post([this, id = std::move(id), directive, done = std::move(done)]() mutable {
        if (!state_ || exit_code_) {
          proto::RescindReply reply;
          reply.set_message("the job has not started or is over");
          if (done) done(reply);
          return;
        }
        if (done) rescind_waiting_[id].push_back(std::move(done));
        Handle(RescindReceived{id, directive});
      })
      .ok();
}

bool Engine::PostStatus(std::function<void(proto::MasterStatus)> done) {
  return options_.loop
      ->Post([this, done = std::move(done)] {
        done(state_ ? StatusOf(*state_) : proto::MasterStatus());
      })
      .ok();
}

}  // namespace godwit::master
