// A training program for the process tests: no libtorch, integer sums only, so that its final state
// is the same, bit for bit, at any world size and through any number of restarts.
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "base/digest.h"
#include "base/random.h"
#include "godwit/runtime/run.h"
#include "godwit/runtime/sampler.h"

namespace godwit {
namespace {

struct Options {
  std::string dir, audit, result, exit_once, hold_until;
  uint64_t steps = 100;
  uint64_t step_ms = 0;
  uint64_t samples = 1000;
  uint64_t global_batch = 12;
  uint64_t values = 64 << 10;  // floats of state
  uint64_t snapshot_every = 10;
  uint64_t persist_every = 40;
  uint64_t exit_at = 0;  // exit with 3 in this step (counted from 1), unless `exit_once` exists
  uint64_t hold_at = 0;  // in this step wait until `hold_until` exists
};

[[noreturn]] void Die(const std::string& message) {
  std::fprintf(stderr, "trainer: %s\n", message.c_str());
  std::exit(1);
}

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

void Touch(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) Die("cannot create " + path);
  std::fclose(file);
}

int Main(int argc, char** argv) {
  Options o;
  CLI::App app("trainer of the process tests");
  app.add_option("--dir", o.dir);
  app.add_option("--audit", o.audit);
  app.add_option("--result", o.result, "rank 0 writes the final state's digest here");
  app.add_option("--steps", o.steps);
  app.add_option("--step-ms", o.step_ms);
  app.add_option("--samples", o.samples);
  app.add_option("--global-batch", o.global_batch);
  app.add_option("--values", o.values);
  app.add_option("--snapshot-every", o.snapshot_every);
  app.add_option("--persist-every", o.persist_every);
  app.add_option("--exit-at", o.exit_at);
  app.add_option("--exit-once", o.exit_once);
  app.add_option("--hold-at", o.hold_at);
  app.add_option("--hold-until", o.hold_until);
  CLI11_PARSE(app, argc, argv);

  std::vector<float> weights(o.values);
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = float(Mix64(i) % 1024);
  Sampler sampler({.dataset_size = o.samples, .global_batch = o.global_batch, .seed = 7});

  Run run = Run::OpenOrExit(&argc, argv,
                            {.dir = o.dir,
                             .steps = o.steps,
                             .snapshot_every = o.snapshot_every,
                             .persist_every = o.persist_every});
  ckpt::TensorRef tensor;
  tensor.name = "weights";
  tensor.shape = {static_cast<int64_t>(weights.size())};
  tensor.data = weights.data();
  tensor.bytes = weights.size() * sizeof(float);
  run.TrackTensor(tensor).Track("sampler", sampler);
  const Restored from = run.Restore();
  std::printf("rank %u of %u starts at step %" PRIu64 ": %s\n", run.rank(), run.world_size(),
              from.step, from.reason.c_str());
  std::fflush(stdout);

  std::FILE* audit = nullptr;
  if (!o.audit.empty()) {
    mkdir(o.audit.c_str(), 0755);
    const std::string path = o.audit + "/audit-" + std::to_string(run.term()) + "-" +
                             std::to_string(run.epoch()) + "-" + std::to_string(run.rank()) +
                             ".log";
    audit = std::fopen(path.c_str(), "a");
    if (audit == nullptr) Die("cannot open " + path);
  }

  for (Step& step : run.Steps()) {
    const auto start = std::chrono::steady_clock::now();
    if (o.exit_at == step.index() + 1 && !Exists(o.exit_once)) {
      Touch(o.exit_once);
      Die("told to exit in step " + std::to_string(o.exit_at));
    }
    if (o.hold_at == step.index() + 1) {
      for (int i = 0; i < 6000 && !Exists(o.hold_until); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
    const uint64_t pass = sampler.pass();
    float sums[4] = {};
    std::string ids;
    for (const Step::MicroBatch& micro : step.Micro(sampler)) {
      for (const uint64_t id : micro.ids()) {
        sums[id % 4] += float(Mix64(id) % 64);  // small integers: exact in any order
        ids += " " + std::to_string(id);
      }
    }
    if (audit != nullptr && !ids.empty()) {
      std::fprintf(audit, "%" PRIu64 " %" PRIu64 " %" PRIu64 " %u %" PRIu64 "%s\n", run.term(),
                   run.epoch(), step.index(), run.rank(), pass, ids.c_str());
      std::fflush(audit);
    }
    step.AllReduceSum(sums, 4);
    step.Update([&] {
      // With noise that depends on the place and the step alone, or packs would compress to
      // nothing.
      for (size_t i = 0; i < weights.size(); ++i) {
        weights[i] = weights[i] * 0.5f + sums[i % 4] +
                     float(Mix64(i * 0x9e3779b97f4a7c15u + step.index()) % 65536);
      }
    });
    if (o.step_ms > 0) {
      std::this_thread::sleep_until(start + std::chrono::milliseconds(o.step_ms));
    }
  }
  if (run.done() && run.rank() == 0 && !o.result.empty()) {
    const std::string digest = DigestOf(std::as_bytes(std::span<const float>(weights))).ToHex();
    const std::string temp = o.result + ".new";
    std::FILE* file = std::fopen(temp.c_str(), "w");
    if (file == nullptr) Die("cannot open " + temp);
    std::fprintf(file, "%s\n", digest.c_str());
    std::fclose(file);
    if (std::rename(temp.c_str(), o.result.c_str()) != 0) Die("cannot rename to " + o.result);
  }
  if (audit != nullptr) std::fclose(audit);
  return run.ExitCode();
}

}  // namespace
}  // namespace godwit

int main(int argc, char** argv) { return godwit::Main(argc, argv); }
