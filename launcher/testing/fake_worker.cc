// A worker for the tests of keeper and agent: what a training program does with its slot, without
// training anything.
//   fake_worker sleep                 never ends
//   fake_worker exit CODE [TEXT]      prints TEXT on stdout and stderr, ends with CODE
//   fake_worker daemon FILE           leaves a daemon (its pid comes into FILE), never ends
//   fake_worker reserve BYTES         claims its slot, fills snapshot memory with 0x5a, never ends
//   fake_worker kv                    rank 0 sets a key, all get it; exit code 0 if it is right
//   fake_worker train STEPS MS        claims, restores, trains: MS milliseconds a step
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/strings.h"
#include "ckpt/engine/arena.h"
#include "ckpt/engine/restore.h"
#include "ckpt/engine/snapshotter.h"
#include "control/worker_channel.h"

namespace godwit {
namespace {

constexpr Duration kLimit = std::chrono::seconds(30);
constexpr uint64_t kSnapshotEvery = 2;

MonotonicTime In(Duration d) { return SaturatingAdd(MonotonicClock::now(), d); }

std::string Env(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

[[noreturn]] void Die(const Status& status) {
  std::fprintf(stderr, "fake_worker: %s\n", status.ToString().c_str());
  std::exit(1);
}

template <typename T>
T OrDie(Result<T> result) {
  if (!result.ok()) Die(result.status());
  return std::move(*result);
}

std::unique_ptr<WorkerChannel> Claim(uint64_t total_steps) {
  ClaimRequest claim;
  claim.slot = static_cast<uint32_t>(OrDie(ParseUint64(Env(kEnvSlot))));
  claim.epoch = OrDie(ParseUint64(Env(kEnvEpoch)));
  claim.pid = getpid();
  claim.directory = Env(kEnvDir);
  claim.total_steps = total_steps;
  claim.persist_every = 4;
  return OrDie(WorkerChannel::Claim(Env(kEnvKeeperSocket), claim, In(kLimit)));
}

[[noreturn]] void SleepForEver() {
  while (true) pause();
}

int Daemon(const char* path) {
  if (fork() == 0) {
    setsid();
    if (fork() != 0) _exit(0);
    signal(SIGTERM, SIG_IGN);
    // Under another name first, so that who sees the file sees all of it.
    const std::string temp = std::string(path) + ".new";
    FILE* const file = std::fopen(temp.c_str(), "w");
    std::fprintf(file, "%d\n", getpid());
    std::fclose(file);
    std::rename(temp.c_str(), path);
    SleepForEver();
  }
  wait(nullptr);
  SleepForEver();
}

int Reserve(uint64_t bytes) {
  const std::unique_ptr<WorkerChannel> channel = Claim(0);
  Result<SharedMapping> memory = channel->ReserveSnapshotMemory(bytes, In(kLimit));
  if (!memory.ok()) {
    channel->Report(WorkerState::kFailed, 0, memory.status().message());
    Die(memory.status());
  }
  std::memset(memory->data(), 0x5a, memory->size());
  channel->Report(WorkerState::kInit, 0, "filled");
  SleepForEver();
}

int Kv() {
  const std::unique_ptr<WorkerChannel> channel = Claim(0);
  if (channel->membership().rank == 0) {
    if (const Status s = channel->KvSet("address", "here", kLimit); !s.ok()) Die(s);
  }
  return OrDie(channel->KvGet("address", kLimit)) == "here" ? 0 : 1;
}

// The state is one tensor whose elements all are the number of steps done.
int Train(uint64_t steps, int64_t step_ms) {
  const std::unique_ptr<WorkerChannel> channel = Claim(steps);
  const Membership& me = channel->membership();
  channel->SetTotals(steps, 4);
  channel->Report(WorkerState::kInit, 0);
  std::vector<float> weights(64 << 10, 0.0f);
  ckpt::StateList state;
  ckpt::TensorRef tensor;
  tensor.name = "weights";
  tensor.shape = {static_cast<int64_t>(weights.size())};
  tensor.data = weights.data();
  tensor.bytes = weights.size() * sizeof(float);
  state.tensors.push_back(tensor);
  const ckpt::Plan plan = OrDie(ckpt::Snapshotter::MakePlan(state, me.rank, me.world_size));
  const SharedMapping memory =
      OrDie(channel->ReserveSnapshotMemory(ckpt::Arena::BytesFor(plan), In(kLimit)));
  const ckpt::Arena arena = OrDie(ckpt::Arena::Open(memory.bytes(), plan));

  Orders orders = OrDie(channel->ReadOrders());
  while (orders.resume.kind == ResumeKind::kPending) {
    orders = OrDie(channel->WaitOrders(orders.seq, In(kLimit)));
  }
  uint64_t step = 0;
  if (orders.resume.kind == ResumeKind::kMemory) {
    step = orders.resume.step;
    OrDie(ckpt::RestoreFromMemory(arena, step, me.rank, me.world_size, state));
    if (weights.back() != static_cast<float>(step)) Die(DataLossError("restored wrong weights"));
  } else if (orders.resume.kind == ResumeKind::kRefused) {
    Die(AbortedError(orders.resume.message));
  }

  ckpt::Snapshotter::Options options;
  options.rank = me.rank;
  options.world_size = me.world_size;
  options.term = orders.resume.writer_term;
  options.epoch = me.epoch;
  options.clock = &RealClock();
  options.on_whole = [&](uint64_t whole, uint64_t) { channel->ReportStaged(whole); };
  options.on_dropped = [](uint64_t at, const Status& why) {
    std::fprintf(stderr, "snapshot %lu dropped: %s\n", at, why.ToString().c_str());
  };
  const auto snapshotter = OrDie(ckpt::Snapshotter::Open(state, arena, options));
  StepGate gate = channel->gate();
  gate.Reset(static_cast<uint32_t>(step));
  const uint64_t start = step;
  while (step < steps) {
    if (step > start && step % kSnapshotEvery == 0) {
      const Status s = snapshotter->Begin(step);
      if (!s.ok() && s.code() != StatusCode::kUnavailable) Die(s);
    }
    if (!gate.TryEnter()) {
      uint32_t seq = OrDie(channel->ReadOrders()).seq;
      channel->Report(WorkerState::kAtGate, step);
      bool staged = false;
      while (!gate.TryEnter()) {
        const Result<Orders> now = channel->ReadOrders();
        if (now.ok()) {
          orders = *now;
          seq = now->seq;
          if (orders.park) {
            channel->Report(WorkerState::kParked, step);
            return 75;
          }
          if (orders.stage && orders.stage_step == step && !staged) {
            if (const Status s = snapshotter->StageNow(step, kLimit); !s.ok()) Die(s);
            staged = true;
            channel->Report(WorkerState::kStaged, step);
          }
          if (gate.TryEnter()) break;
        }
        const Result<Orders> waited = channel->WaitOrders(seq, In(kLimit));
        if (!waited.ok() && waited.status().code() != StatusCode::kUnavailable) {
          Die(waited.status());
        }
        if (waited.status().code() == StatusCode::kUnavailable && !channel->KeeperAlive()) {
          Die(waited.status());
        }
      }
      channel->Report(WorkerState::kRunning, step);
    }
    channel->page()->step_started_ns.store(static_cast<uint64_t>(ToNanos(MonotonicClock::now())));
    const timespec work = {.tv_sec = step_ms / 1000, .tv_nsec = step_ms % 1000 * 1'000'000};
    nanosleep(&work, nullptr);
    if (const Status s = snapshotter->Fence(); !s.ok()) Die(s);
    ++step;
    std::fill(weights.begin(), weights.end(), static_cast<float>(step));
  }
  if (const Status s = snapshotter->StageNow(step, kLimit); !s.ok()) Die(s);
  gate.Finish();
  channel->Report(WorkerState::kFinished, step);
  while (true) {
    orders = OrDie(channel->ReadOrders());
    if (orders.park) return 0;
    OrDie(channel->WaitOrders(orders.seq, In(kLimit)));
  }
}

int Main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "sleep") SleepForEver();
  if (mode == "exit" && argc > 2) {
    if (argc > 3) {
      std::printf("%s", argv[3]);
      std::fflush(stdout);
      std::fprintf(stderr, "%s", argv[3]);
    }
    return static_cast<int>(OrDie(ParseUint64(argv[2])));
  }
  if (mode == "daemon" && argc > 2) return Daemon(argv[2]);
  if (mode == "reserve" && argc > 2) return Reserve(OrDie(ParseUint64(argv[2])));
  if (mode == "kv") return Kv();
  if (mode == "train" && argc > 3) {
    return Train(OrDie(ParseUint64(argv[2])), OrDie(ParseInt64(argv[3])));
  }
  std::fprintf(stderr, "fake_worker: unknown mode '%s'\n", mode.c_str());
  return 2;
}

}  // namespace
}  // namespace godwit

int main(int argc, char** argv) { return godwit::Main(argc, argv); }
