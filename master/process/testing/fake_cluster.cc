#include "master/process/testing/fake_cluster.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/file_system.h"
#include "base/real_file_system.h"

namespace godwit::master::testing {
namespace {
using std::chrono::milliseconds;
using std::chrono::seconds;
constexpr auto kBound = seconds(10);  // only against hangs
}  // namespace

// ---- storage ----

Result<ckpt::Found> FakeStorage::FindNewest(const std::string&,
                                            const std::set<ckpt::SaveId>& distrusted) {
  ckpt::Found found;
  GODWIT_ASSIGN_OR_RETURN(const auto entries, RealFileSystem().List(dir_));
  for (const DirEntry& entry : entries) {
    if (entry.name.starts_with("term-")) ++found.newest_term;
    ckpt::SaveId save;
    unsigned long long term = 0, step = 0;
    if (sscanf(entry.name.c_str(), "commit-%llu-%llu-%u", &term, &step, &save.attempt) != 3) {
      continue;
    }
    save.term = term;
    save.step = step;
    if (distrusted.contains(save)) continue;
    if (!found.newest || found.newest->save < save) found.newest = ckpt::Commit{save, {}, 0, 0};
  }
  return found;
}

Result<ckpt::NewTerm> FakeStorage::BeginTerm(const std::string& dir, const std::string&, uint64_t,
                                             const std::set<ckpt::SaveId>& distrusted) {
  GODWIT_ASSIGN_OR_RETURN(ckpt::Found found, FindNewest(dir, distrusted));
  ckpt::NewTerm term;
  term.record.term = found.newest_term + 1;
  term.found = found;
  GODWIT_RETURN_IF_ERROR(WriteFileExclusive(
      RealFileSystem(), fmt::format("{}/term-{}", dir_, term.record.term), {}, Durability::kNone));
  return term;
}

Result<ckpt::Commit> FakeStorage::CommitSave(const std::string&, const ckpt::SaveId& save,
                                             const std::vector<std::string>& tails) {
  for (size_t r = 0; r < tails.size(); ++r) {
    if (tails[r] != fmt::format("{}/{}", save.step, r)) return DataLossError("a strange tail");
  }
  const std::string path =
      fmt::format("{}/commit-{:04}-{:08}-{:04}", dir_, save.term, save.step, save.attempt);
  Status s = WriteFileExclusive(RealFileSystem(), path, {}, Durability::kNone);
  if (!s.ok() && s.code() != StatusCode::kAlreadyExists) return s;
  return ckpt::Commit{save, {}, static_cast<uint32_t>(tails.size()), 1};
}

Status FakeStorage::Retain(const std::string&, uint64_t, uint32_t) { return OkStatus(); }

// ---- agent ----

FakeAgent::FakeAgent(Options options) : options_(std::move(options)), thread_([this] { Run(); }) {}

FakeAgent::~FakeAgent() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    if (context_ != nullptr) context_->TryCancel();
  }
  changed_.notify_all();
  thread_.join();
}

proto::AgentReport FakeAgent::Hello() {
  proto::AgentReport report;
  auto* hello = report.mutable_hello();
  hello->set_job_id(options_.job_id);
  hello->set_node_id(fmt::format("n{}", options_.node));
  hello->set_node_index(options_.node);
  hello->set_slots(options_.slots);
  hello->set_protocol_version(1);
  for (const proto::SlotRank& rank : ranks_) {
    auto* slot = hello->add_slot_reports();
    slot->set_slot(rank.slot());
    slot->set_pid(alive_ ? 100 : 0);
    slot->set_epoch(epoch_);
    slot->set_rank(rank.rank());
    slot->set_world_size(world_);
    slot->set_claimed(true);
    slot->set_state(finished_ ? 7 : at_gate_ ? 2 : 3);
    slot->set_at_step(entered_);
    slot->mutable_gate()->set_entered(entered_);
    auto* claim = slot->mutable_claim();
    claim->set_directory(options_.directory);
    claim->set_total_steps(options_.total_steps);
    claim->set_persist_every(options_.persist_every);
    for (const proto::SnapshotWhole& whole : whole_) {
      if (whole.rank() == rank.rank()) *slot->add_snapshots() = whole;
    }
  }
  return report;
}

void FakeAgent::Run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (stop_ || left_) return;
    }
    const std::string address = options_.locate();
    if (address.empty()) {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, milliseconds(20));
      continue;
    }
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    auto stub = proto::Master::NewStub(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args));
    grpc::ClientContext context;
    {
      std::lock_guard lock(mutex_);
      if (stop_) return;
      context_ = &context;
      queue_.clear();
      queue_.push_back(Hello());
      open_ = true;
    }
    auto stream = stub->Attach(&context);
    std::thread writer([&] {
      for (;;) {
        proto::AgentReport report;
        {
          std::unique_lock lock(mutex_);
          changed_.wait(lock, [&] { return !queue_.empty() || !open_; });
          if (!open_) break;
          report = std::move(queue_.front());
          queue_.pop_front();
        }
        if (!stream->Write(report)) break;
      }
      stream->WritesDone();
    });
    proto::MasterOrder order;
    while (stream->Read(&order)) Obey(order);
    {
      std::lock_guard lock(mutex_);
      open_ = false;
      if (left_) context.TryCancel();
    }
    changed_.notify_all();
    writer.join();
    (void)stream->Finish();
    std::unique_lock lock(mutex_);
    context_ = nullptr;
    if (!stop_ && !left_) changed_.wait_for(lock, milliseconds(20));
  }
}

void FakeAgent::Report(proto::AgentReport report) {
  if (open_) queue_.push_back(std::move(report));
  changed_.notify_all();
}

void FakeAgent::Obey(const proto::MasterOrder& order) {
  std::lock_guard lock(mutex_);
  orders_.push_back(order);
  using Case = proto::MasterOrder::OrderCase;
  const auto at_gate = [&](uint64_t step) {
    for (const proto::SlotRank& rank : ranks_) {
      proto::AgentReport report;
      report.mutable_worker_at_gate()->set_epoch(epoch_);
      report.mutable_worker_at_gate()->set_rank(rank.rank());
      report.mutable_worker_at_gate()->set_step(step);
      Report(std::move(report));
    }
  };
  const auto snapshot = [&](uint64_t step) {
    for (const proto::SlotRank& rank : ranks_) {
      proto::AgentReport report;
      auto* whole = report.mutable_snapshot_whole();
      whole->set_epoch(epoch_);
      whole->set_rank(rank.rank());
      whole->set_world_size(world_);
      whole->set_step(step);
      whole->set_bytes(1000);
      whole_.push_back(*whole);
      Report(std::move(report));
    }
  };
  const auto gone = [&] {
    alive_ = false;
    proto::AgentReport report;
    report.mutable_workers_gone()->set_epoch(epoch_);
    Report(std::move(report));
  };
  switch (order.order_case()) {
    case Case::kWelcome:
      refused_ = order.welcome().refused();
      break;
    case Case::kStartEpoch:
      if (order.start_epoch().epoch() <= epoch_) break;
      epoch_ = order.start_epoch().epoch();
      world_ = order.start_epoch().world_size();
      ranks_.assign(order.start_epoch().ranks().begin(), order.start_epoch().ranks().end());
      alive_ = true;
      at_gate_ = finished_ = parked_ = false;
      entered_ = 0;
      for (const proto::SlotRank& rank : ranks_) {
        proto::AgentReport started;
        started.mutable_worker_started()->set_epoch(epoch_);
        started.mutable_worker_started()->set_slot(rank.slot());
        started.mutable_worker_started()->set_rank(rank.rank());
        started.mutable_worker_started()->set_pid(100);
        Report(std::move(started));
        proto::AgentReport claimed;
        auto* claim = claimed.mutable_worker_claimed();
        claim->set_epoch(epoch_);
        claim->set_slot(rank.slot());
        claim->set_rank(rank.rank());
        claim->set_directory(options_.directory);
        claim->set_total_steps(options_.total_steps);
        claim->set_persist_every(options_.persist_every);
        Report(std::move(claimed));
      }
      break;
    case Case::kResume:
      if (order.resume().epoch() != epoch_ || at_gate_ || entered_ > 0) break;
      resumed_ = entered_ = order.resume().resume_step();
      at_gate_ = true;
      at_gate(entered_);
      break;
    case Case::kCloseGates:
      for (const proto::SlotRank& rank : ranks_) {
        proto::AgentReport report;
        auto* reply = report.mutable_gate_reply();
        reply->set_epoch(epoch_);
        reply->set_rank(rank.rank());
        reply->set_entered(entered_);
        reply->set_limit(entered_);
        reply->set_closed(true);
        Report(std::move(report));
      }
      break;
    case Case::kSetLimit:
      entered_ = order.set_limit().step();
      at_gate_ = true;
      at_gate(entered_);
      break;
    case Case::kOpenGates:
      at_gate_ = false;
      break;
    case Case::kStageAt:
      snapshot(order.stage_at().step());
      break;
    case Case::kPersist:
      for (const proto::SlotRank& rank : ranks_) {
        proto::AgentReport report;
        auto* written = report.mutable_pack_written();
        *written->mutable_save() = order.persist().save();
        written->set_rank(rank.rank());
        written->set_tail(fmt::format("{}/{}", order.persist().save().step(), rank.rank()));
        written->set_bytes(500);
        written->set_duration_ns(1000000);
        Report(std::move(report));
      }
      break;
    case Case::kFreeSnapshots: {
      const auto& free = order.free_snapshots();
      std::erase_if(whole_, [&](const proto::SnapshotWhole& s) {
        return std::pair(s.epoch(), s.step()) < std::pair(free.epoch(), free.below_step()) ||
               std::any_of(free.drop().begin(), free.drop().end(), [&](const auto& name) {
                 return name.epoch() == s.epoch() && name.step() == s.step();
               });
      });
      break;
    }
    case Case::kParkWorkers:
      parked_ = true;
      gone();
      break;
    case Case::kStopWorkers:
      gone();
      break;
    case Case::kLeave:
      left_ = true;
      leave_code_ = order.leave().exit_code();
      open_ = false;
      if (context_ != nullptr) context_->TryCancel();
      break;
    default:
      break;
  }
  changed_.notify_all();
}

void FakeAgent::Advance(uint64_t step, bool snapshot) {
  std::lock_guard lock(mutex_);
  entered_ = step;
  proto::AgentReport beat;
  for (const proto::SlotRank& rank : ranks_) {
    auto* progress = beat.mutable_heartbeat()->add_ranks();
    progress->set_epoch(epoch_);
    progress->set_rank(rank.rank());
    progress->set_entered(step);
    progress->set_step_longest_ns(10'000'000);
  }
  Report(std::move(beat));
  if (!snapshot) return;
  for (const proto::SlotRank& rank : ranks_) {
    proto::AgentReport report;
    auto* whole = report.mutable_snapshot_whole();
    whole->set_epoch(epoch_);
    whole->set_rank(rank.rank());
    whole->set_world_size(world_);
    whole->set_step(step);
    whole->set_bytes(1000);
    whole_.push_back(*whole);
    Report(std::move(report));
  }
}

void FakeAgent::FinishSteps() {
  Advance(options_.total_steps, true);
  std::lock_guard lock(mutex_);
  finished_ = true;
  for (const proto::SlotRank& rank : ranks_) {
    proto::AgentReport report;
    report.mutable_worker_finished()->set_epoch(epoch_);
    report.mutable_worker_finished()->set_rank(rank.rank());
    report.mutable_worker_finished()->set_step(options_.total_steps);
    Report(std::move(report));
  }
}

void FakeAgent::KillWorker(uint32_t slot, int signal) {
  std::lock_guard lock(mutex_);
  for (const proto::SlotRank& rank : ranks_) {
    if (rank.slot() != slot) continue;
    proto::AgentReport report;
    auto* exited = report.mutable_worker_exited();
    exited->set_epoch(epoch_);
    exited->set_slot(slot);
    exited->set_rank(rank.rank());
    exited->set_signal(signal);
    exited->set_entered(entered_);
    exited->set_log_tail("last words");
    Report(std::move(report));
  }
}

bool FakeAgent::WaitFor(const std::function<bool()>& condition) {
  std::unique_lock lock(mutex_);
  const auto until = std::chrono::steady_clock::now() + kBound;
  while (!condition()) {
    // Also looks by itself now and then: a condition may be about something else than orders.
    if (std::chrono::steady_clock::now() > until) return false;
    changed_.wait_for(lock, milliseconds(20));
  }
  return true;
}

bool FakeAgent::WaitForOrder(const std::function<bool(const proto::MasterOrder&)>& condition) {
  return WaitFor([&] { return std::any_of(orders_.begin(), orders_.end(), condition); });
}

bool FakeAgent::WaitRunning(uint64_t epoch) {
  return WaitFor([&] {
    return epoch_ == epoch && std::any_of(orders_.begin(), orders_.end(), [&](const auto& o) {
             return o.has_open_gates() && o.open_gates().epoch() == epoch;
           });
  });
}

bool FakeAgent::WaitLeft() {
  return WaitFor([&] { return left_; });
}

std::vector<proto::MasterOrder> FakeAgent::orders() {
  std::lock_guard lock(mutex_);
  return orders_;
}

size_t FakeAgent::Count(proto::MasterOrder::OrderCase kind) {
  std::lock_guard lock(mutex_);
  return static_cast<size_t>(std::count_if(orders_.begin(), orders_.end(),
                                           [&](const auto& o) { return o.order_case() == kind; }));
}

int FakeAgent::leave_code() {
  std::lock_guard lock(mutex_);
  return leave_code_;
}
uint64_t FakeAgent::resumed_step() {
  std::lock_guard lock(mutex_);
  return resumed_;
}
std::string FakeAgent::refused() {
  std::lock_guard lock(mutex_);
  return refused_;
}

// ---- scheduler ----

FakeScheduler::FakeScheduler() {
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  address_ = fmt::format("127.0.0.1:{}", port);
}

FakeScheduler::~FakeScheduler() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  server_->Shutdown(std::chrono::system_clock::now() + seconds(1));
}

void FakeScheduler::SetSpec(proto::RegisterMasterReply reply) {
  std::lock_guard lock(mutex_);
  spec_ = std::move(reply);
}

void FakeScheduler::Direct(proto::Directive directive) {
  {
    std::lock_guard lock(mutex_);
    directive.set_number(directives_.size() + 1);
    directives_.push_back(std::move(directive));
  }
  changed_.notify_all();
}

void FakeScheduler::Disown() {
  std::lock_guard lock(mutex_);
  disowned_ = true;
}

std::string FakeScheduler::master_address() {
  std::lock_guard lock(mutex_);
  return master_address_;
}

std::vector<proto::MasterReport> FakeScheduler::reports() {
  std::lock_guard lock(mutex_);
  return reports_;
}

bool FakeScheduler::WaitFor(const std::function<bool(const proto::MasterReport&)>& condition) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(
      lock, kBound, [&] { return std::any_of(reports_.begin(), reports_.end(), condition); });
}

grpc::Status FakeScheduler::RegisterMaster(grpc::ServerContext*,
                                           const proto::RegisterMasterRequest* request,
                                           proto::RegisterMasterReply* reply) {
  std::lock_guard lock(mutex_);
  if (disowned_) return {grpc::StatusCode::NOT_FOUND, "no such job"};
  master_address_ = request->address();
  *reply = spec_;
  return grpc::Status::OK;
}

grpc::Status FakeScheduler::PollDirectives(grpc::ServerContext* context,
                                           const proto::PollDirectivesRequest* request,
                                           proto::PollDirectivesReply* reply) {
  std::unique_lock lock(mutex_);
  const auto until = std::chrono::steady_clock::now() + milliseconds(request->wait_ms());
  while (!stop_ && !context->IsCancelled() && directives_.size() <= request->after_number() &&
         std::chrono::steady_clock::now() < until) {
    changed_.wait_for(lock, milliseconds(50));
  }
  for (size_t i = request->after_number(); i < directives_.size(); ++i) {
    *reply->add_directives() = directives_[i];
  }
  return grpc::Status::OK;
}

grpc::Status FakeScheduler::ReportMaster(grpc::ServerContext*, const proto::MasterReport* report,
                                         proto::MasterReportReply* reply) {
  {
    std::lock_guard lock(mutex_);
    reports_.push_back(*report);
    reply->set_stale(disowned_);
  }
  changed_.notify_all();
  return grpc::Status::OK;
}

}  // namespace godwit::master::testing
