// What a step boundary costs without a notice: the loop of a run alone, whose gate, page and
// snapshot checks are those of a job. Prints a table and JSON, as ratios to a bare clock read and a
// bare compare-and-swap in the same run.
//
//   gate_bench               measure
//   gate_bench --loop N      only take N steps: for `strace -f -c gate_bench --loop 1000000`, whose
//                            count of system calls must not grow with N
#include <godwit/runtime/run.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <string_view>
#include <vector>

namespace {

std::atomic<unsigned long long> allocations{0};

void* Allocate(size_t bytes, size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* p = alignment <= alignof(std::max_align_t)
                ? std::malloc(bytes)
                : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (p == nullptr) std::abort();
  return p;
}

}  // namespace

void* operator new(size_t bytes) { return Allocate(bytes, 1); }
void* operator new[](size_t bytes) { return Allocate(bytes, 1); }
void* operator new(size_t bytes, std::align_val_t a) {
  return Allocate(bytes, static_cast<size_t>(a));
}
void* operator new[](size_t bytes, std::align_val_t a) {
  return Allocate(bytes, static_cast<size_t>(a));
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { std::free(p); }

namespace {

using Clock = std::chrono::steady_clock;

double Nanos(Clock::duration d) { return std::chrono::duration<double, std::nano>(d).count(); }

struct Stats {
  double median, least, most;
};
Stats Of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

constexpr uint64_t kBatch = 200'000;
constexpr int kBatches = 21;

// Takes `steps` steps; returns ns per step of each batch of kBatch, and the allocations of all but
// the first step.
std::vector<double> Loop(uint64_t steps, unsigned long long* allocated) {
  std::vector<float> weights(1000);
  // With a directory, so that the fence and the snapshot's due date are looked at; but no save
  // falls due before the end.
  char dir[] = "/tmp/gate_bench.XXXXXX";
  if (mkdtemp(dir) == nullptr) std::abort();
  auto run = godwit::Run::OpenOrExit(nullptr, nullptr,
                                     {.dir = dir, .steps = steps, .persist_every = steps + 1});
  run.Track("weights", weights);
  run.TryRestore().value();
  std::vector<double> per_step;
  per_step.reserve(steps / kBatch + 1);
  unsigned long long before = 0;
  unsigned long long at_last = 0;
  Clock::time_point began;
  for (godwit::Step& step : run.Steps()) {
    step.Update([] {});
    if (step.index() == 0) {
      before = allocations.load();
      began = Clock::now();
    } else if (step.index() % kBatch == 0) {
      const auto now = Clock::now();
      per_step.push_back(Nanos(now - began) / kBatch);
      began = now;
    }
    at_last = allocations.load();
  }
  *allocated = at_last - before;
  if (run.ExitCode() != 0) std::abort();
  std::filesystem::remove_all(dir);
  return per_step;
}

template <typename F>
Stats Measure(F&& f) {
  std::vector<double> values;
  for (int i = 0; i < kBatches; ++i) {
    const auto began = Clock::now();
    for (uint64_t j = 0; j < kBatch; ++j) f();
    values.push_back(Nanos(Clock::now() - began) / kBatch);
  }
  return Of(values);
}

}  // namespace

int main(int argc, char** argv) {
  unsigned long long allocated = 0;
  if (argc == 3 && std::string_view(argv[1]) == "--loop") {
    Loop(std::strtoull(argv[2], nullptr, 10), &allocated);
    std::printf("allocations in the loop: %llu\n", allocated);
    return allocated == 0 ? 0 : 1;
  }
  const Stats boundary = Of(Loop(kBatch * kBatches + 1, &allocated));
  const Stats clock = Measure([] { (void)Clock::now(); });
  std::atomic<uint64_t> word{0};
  const Stats swap = Measure([&] {
    uint64_t seen = word.load(std::memory_order_relaxed);
    word.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel);
  });
  std::printf("%-28s %10s %10s %10s\n", "ns", "median", "least", "most");
  const auto row = [](const char* name, const Stats& s) {
    std::printf("%-28s %10.1f %10.1f %10.1f\n", name, s.median, s.least, s.most);
  };
  row("step boundary with Update", boundary);
  row("clock read", clock);
  row("compare-and-swap", swap);
  std::printf("boundary / (clock + swap): %.2f; allocations in %llu steps: %llu\n",
              boundary.median / (clock.median + swap.median),
              static_cast<unsigned long long>(kBatch * kBatches), allocated);
  std::printf(
      "{\"boundary_ns\": %.1f, \"boundary_most_ns\": %.1f, \"clock_ns\": %.1f, "
      "\"cas_ns\": %.1f, \"allocations\": %llu}\n",
      boundary.median, boundary.most, clock.median, swap.median, allocated);
  return boundary.median < 1000 && allocated == 0 ? 0 : 1;
}
