// What one save costs a training loop, beside what the machine can do in the same run.
//
//   ckpt_bench [--mb 20,500] [--steps 200] [--runs 5] [--mode device,busy] [--dir DIR] [--json
//   FILE]
//
// Loops with and without a save take turns, and the extra wall time is their difference, so that
// the machine's other load hits both. On a shared machine that difference of whole loops is mostly
// noise when the step is short, so the same loops are also compared step by step: for each step of
// the loop the median over the runs, and the sum of the differences of these medians. "device": a
// step waits (sleeps) longer than the copy takes, as a loop on a GPU does. "busy": a step keeps two
// threads computing.
#include <fmt/core.h>
#include <sys/utsname.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/real_file_system.h"
#include "base/strings.h"
#include "base/temp_dir.h"
#include "ckpt/engine/snapshotter.h"
#include "ckpt/engine/solo_saver.h"

namespace godwit::ckpt {
namespace {

using SteadyClock = std::chrono::steady_clock;

double Seconds(SteadyClock::duration d) { return std::chrono::duration<double>(d).count(); }

struct Spread {
  double median = 0, min = 0, max = 0;
};
Spread Of(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return {v[v.size() / 2], v.front(), v.back()};
}
double Quantile(std::vector<double> v, double q) {
  std::sort(v.begin(), v.end());
  return v[std::min(v.size() - 1, static_cast<size_t>(q * static_cast<double>(v.size())))];
}

// Bytes per second into pages that are warm.
double MemcpyRate(uint64_t bytes) {
  std::vector<char> from(bytes, 1), to(bytes, 2);
  std::vector<double> rates;
  for (int i = 0; i < 7; ++i) {
    const auto start = SteadyClock::now();
    std::memcpy(to.data(), from.data(), bytes);
    // The copy is used, so that it isn't left out.
    static std::atomic<char> sink;
    sink = to[bytes / 2];
    rates.push_back(static_cast<double>(bytes) / Seconds(SteadyClock::now() - start));
  }
  return Of(rates).median;
}

void Compute(uint64_t rounds) {
  static thread_local uint64_t x = 88172645463325252ull;
  for (uint64_t i = 0; i < rounds * 1000; ++i) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
  }
  static std::atomic<uint64_t> sink;
  sink.store(x, std::memory_order_relaxed);
}

// The loop's step: both threads compute, or the training thread sleeps.
class Work {
 public:
  Work(bool busy, double step_s) : busy_(busy), step_s_(step_s), barrier_(2) {
    if (!busy) return;
    const auto start = SteadyClock::now();
    Compute(2000);
    rounds_ = static_cast<uint64_t>(2000 * step_s / Seconds(SteadyClock::now() - start));
    helper_ = std::thread([this] {
      for (;;) {
        barrier_.arrive_and_wait();
        if (stop_) return;
        Compute(rounds_);
        barrier_.arrive_and_wait();
      }
    });
  }
  ~Work() {
    if (!busy_) return;
    stop_ = true;
    barrier_.arrive_and_wait();
    helper_.join();
  }
  void Step() {
    if (!busy_) {
      std::this_thread::sleep_for(std::chrono::duration<double>(step_s_));
      return;
    }
    barrier_.arrive_and_wait();
    Compute(rounds_);
    barrier_.arrive_and_wait();
  }

 private:
  const bool busy_;
  const double step_s_;
  uint64_t rounds_ = 0;
  std::barrier<> barrier_;
  bool stop_ = false;  // ordered by the barrier
  std::thread helper_;
};

// AdamW's state of a model: weights and two moments, in layers of 4 MiB.
struct Model {
  explicit Model(uint64_t bytes) {
    const uint64_t layer = 4 << 20;
    for (uint64_t done = 0; done < bytes; done += layer) {
      const uint64_t n = std::min(layer, bytes - done) / 4;
      data.emplace_back(n);
      uint64_t x = 0x9e3779b97f4a7c15ull + done;
      for (float& v : data.back()) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        v = static_cast<float>(static_cast<int64_t>(x)) * 1e-20f;
      }
    }
    for (size_t i = 0; i < data.size(); ++i) {
      TensorRef t;
      t.name = fmt::format("layer{}", i);
      t.shape = {static_cast<int64_t>(data[i].size())};
      t.data = data[i].data();
      t.bytes = data[i].size() * 4;
      list.tensors.push_back(t);
    }
  }
  // Of an optimizer on the host the part that matters here: it writes to the state.
  void Update() {
    for (auto& layer : data) layer[0] += 1;
  }
  std::vector<std::vector<float>> data;
  StateList list;
};

struct Row {
  uint64_t mb = 0;
  bool busy = false;
  uint64_t steps = 0;
  double step_ms = 0;
  double memcpy_gbs = 0;
  Spread extra_ms;
  double extra_by_step_ms = 0;  // from the medians of each step
  double ideal_ms = 0;          // bytes / memcpy rate
  double fence_p50_ms = 0, fence_p99_ms = 0;
  double gate_p50_ms = 0, gate_p99_ms = 0;
  Spread drain_ms;  // until the save is committed, after the loop
};

template <typename T>
T Must(Result<T> r) {
  if (!r.ok()) {
    fmt::print(stderr, "ckpt_bench: {}\n", r.status().ToString());
    std::exit(1);
  }
  return std::move(r).value();
}
void Must(const Status& s) {
  if (s.ok()) return;
  fmt::print(stderr, "ckpt_bench: {}\n", s.ToString());
  std::exit(1);
}

Row Measure(uint64_t mb, bool busy, uint64_t steps, int runs, const std::string& dir) {
  Row row;
  row.mb = mb;
  row.busy = busy;
  row.steps = steps;
  const uint64_t bytes = mb * 1'000'000;
  const double rate = MemcpyRate(bytes);
  row.memcpy_gbs = rate / 1e9;
  row.ideal_ms = static_cast<double>(bytes) / rate * 1e3;
  // Longer than the copy with its digest takes, on a core that is not all ours.
  const double step_s = std::max(0.005, 3 * static_cast<double>(bytes) / rate);
  row.step_ms = step_s * 1e3;

  Model model(bytes);
  const Plan plan = Must(PlanOf(model.list));
  Arena arena = Must(Arena::Private(plan));
  auto saver = Must(SoloSaver::Open(RealFileSystem(), RealClock(), {dir, "bench", 1}, arena));
  std::atomic<uint64_t> save_at{0};
  Snapshotter::Options options;
  options.term = saver->term();
  options.epoch = 1;
  options.clock = &RealClock();
  options.on_whole = [&](uint64_t step, uint64_t) {
    if (step == save_at) {
      saver->Offer(step, 1);
    } else {
      saver->Whole(step, 1);
    }
  };
  auto snapshotter = Must(Snapshotter::Open(model.list, arena, options));
  Work work(busy, step_s);
  uint64_t step = 0;
  // By kind of loop and step: the durations in the runs that count.
  std::vector<std::vector<double>> times[2] = {std::vector<std::vector<double>>(steps),
                                               std::vector<std::vector<double>>(steps)};
  const auto loop = [&](bool save) {
    const auto start = SteadyClock::now();
    auto last = start;
    for (uint64_t i = 0; i < steps; ++i, ++step) {
      if (save && i == steps / 4) {
        save_at = step + 1;
        Must(snapshotter->Begin(step + 1));
      }
      work.Step();
      Must(snapshotter->Fence());
      model.Update();
      const auto now = SteadyClock::now();
      times[save][i].push_back(Seconds(now - last) * 1e3);
      last = now;
    }
    return Seconds(SteadyClock::now() - start);
  };
  std::vector<double> extra, drain;
  for (int run = 0; run < runs + 1; ++run) {
    // In turns, and each first every other time.
    double with = 0, without = 0;
    if (run % 2) with = loop(true);
    if (run % 2) {
      const auto start = SteadyClock::now();
      Must(saver->Drain(std::chrono::minutes(10)));
      drain.push_back(Seconds(SteadyClock::now() - start) * 1e3);
    }
    without = loop(false);
    if (run % 2 == 0) {
      with = loop(true);
      const auto start = SteadyClock::now();
      Must(saver->Drain(std::chrono::minutes(10)));
      drain.push_back(Seconds(SteadyClock::now() - start) * 1e3);
    }
    if (run > 0) {
      extra.push_back((with - without) * 1e3);
      continue;
    }
    // The first warms up.
    for (auto& kind : times) {
      for (auto& of_step : kind) of_step.clear();
    }
  }
  for (uint64_t i = 0; i < steps; ++i) {
    row.extra_by_step_ms += Of(times[1][i]).median - Of(times[0][i]).median;
  }
  row.extra_ms = Of(extra);
  row.drain_ms = Of(drain);

  // Fence and gate, with a snapshot before every other step.
  std::vector<double> fence, gate;
  for (uint64_t i = 0; i < std::max<uint64_t>(steps, 40); ++i, ++step) {
    bool begun = false;
    if (i % 2 == 0) {
      const auto start = SteadyClock::now();
      begun = snapshotter->Begin(step + 1).ok();
      gate.push_back(Seconds(SteadyClock::now() - start) * 1e3);
    }
    work.Step();
    const auto start = SteadyClock::now();
    Must(snapshotter->Fence());
    if (begun) fence.push_back(Seconds(SteadyClock::now() - start) * 1e3);
    model.Update();
  }
  row.fence_p50_ms = Quantile(fence, 0.5);
  row.fence_p99_ms = Quantile(fence, 0.99);
  row.gate_p50_ms = Quantile(gate, 0.5);
  row.gate_p99_ms = Quantile(gate, 0.99);
  return row;
}

std::string Json(const std::vector<Row>& rows, int runs) {
  utsname u{};
  uname(&u);
  std::string out =
      fmt::format("{{\"machine\": \"{} {} {}\", \"cores\": {}, \"runs\": {}, \"rows\": [",
                  u.sysname, u.release, u.machine, std::thread::hardware_concurrency(), runs);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& r = rows[i];
    out += fmt::format(
        "{}\n  {{\"mb\": {}, \"mode\": \"{}\", \"steps\": {}, \"step_ms\": {:.3f}, "
        "\"memcpy_gb_per_s\": {:.3f}, \"copy_at_memcpy_rate_ms\": {:.3f}, \"extra_ms\": "
        "{{\"median\": {:.3f}, \"min\": {:.3f}, \"max\": {:.3f}, \"by_step\": {:.3f}}}, "
        "\"by_step_by_copy\": {:.3f}, "
        "\"fence_ms\": {{\"p50\": {:.4f}, \"p99\": {:.4f}}}, \"gate_ms\": {{\"p50\": {:.4f}, "
        "\"p99\": {:.4f}}}, \"drain_ms\": {{\"median\": {:.1f}, \"min\": {:.1f}, \"max\": "
        "{:.1f}}}}}",
        i ? "," : "", r.mb, r.busy ? "busy" : "device", r.steps, r.step_ms, r.memcpy_gbs,
        r.ideal_ms, r.extra_ms.median, r.extra_ms.min, r.extra_ms.max, r.extra_by_step_ms,
        r.extra_by_step_ms / r.ideal_ms, r.fence_p50_ms, r.fence_p99_ms, r.gate_p50_ms,
        r.gate_p99_ms, r.drain_ms.median, r.drain_ms.min, r.drain_ms.max);
  }
  return out + "\n]}\n";
}

int Main(int argc, char** argv) {
  std::string sizes = "20,500", modes = "device,busy", dir, json;
  uint64_t steps = 200, runs = 5;
  for (int i = 1; i < argc; i += 2) {
    const std::string option = argv[i];
    if (i + 1 >= argc) {
      fmt::print(stderr, "ckpt_bench: {} needs a value\n", option);
      return 2;
    }
    const std::string value = argv[i + 1];
    if (option == "--mb") {
      sizes = value;
    } else if (option == "--mode") {
      modes = value;
    } else if (option == "--steps") {
      steps = Must(ParseUint64(value));
    } else if (option == "--runs") {
      runs = Must(ParseUint64(value));
    } else if (option == "--dir") {
      dir = value;
    } else if (option == "--json") {
      json = value;
    } else {
      fmt::print(stderr,
                 "ckpt_bench: {}: allowed are --mb, --mode, --steps, --runs, --dir, --json\n",
                 option);
      return 2;
    }
  }
  if (steps < 4 || runs < 1) {
    fmt::print(stderr, "ckpt_bench: allowed are 4 steps and 1 run, and more\n");
    return 2;
  }
  TempDir temp = Must(TempDir::Create("godwit-ckpt-bench"));
  if (dir.empty()) dir = temp.File("ckpt");
  std::vector<Row> rows;
  fmt::print("{:>5} {:>7} {:>9} {:>9} {:>9} {:>24} {:>9} {:>8} {:>15} {:>15}\n", "MB", "loop",
             "step ms", "memcpy", "copy ms", "extra ms (min-max)", "by step", "x copy",
             "fence p50/p99", "gate p50/p99");
  for (const std::string& mode : Split(modes, ',')) {
    for (const std::string& size : Split(sizes, ',')) {
      const Row r = Measure(Must(ParseUint64(size)), mode == "busy", steps, static_cast<int>(runs),
                            JoinPath(dir, mode + size));
      rows.push_back(r);
      fmt::print(
          "{:>5} {:>7} {:>9.1f} {:>5.1f}GB/s {:>9.2f} {:>24} {:>9.2f} {:>8.2f} {:>15} {:>15}\n",
          r.mb, mode, r.step_ms, r.memcpy_gbs, r.ideal_ms,
          fmt::format("{:.2f} ({:.2f}-{:.2f})", r.extra_ms.median, r.extra_ms.min, r.extra_ms.max),
          r.extra_by_step_ms, r.extra_by_step_ms / r.ideal_ms,
          fmt::format("{:.3f}/{:.3f}", r.fence_p50_ms, r.fence_p99_ms),
          fmt::format("{:.3f}/{:.3f}", r.gate_p50_ms, r.gate_p99_ms));
      std::fflush(stdout);
    }
  }
  const std::string text = Json(rows, static_cast<int>(runs));
  if (json.empty()) {
    fmt::print("{}", text);
  } else if (std::FILE* f = std::fopen(json.c_str(), "w")) {
    std::fwrite(text.data(), 1, text.size(), f);
    std::fclose(f);
  } else {
    fmt::print(stderr, "ckpt_bench: cannot write {}\n", json);
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace godwit::ckpt

int main(int argc, char** argv) { return godwit::ckpt::Main(argc, argv); }
