// Trains a byte-level GPT, data-parallel, on real text. The model and its data are ordinary
// libtorch; what Godwit adds is marked (1) to (5).

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numbers>
#include <thread>
#include <vector>

#include "examples/gpt/audit_log.h"
#include "examples/gpt/corpus.h"
#include "examples/gpt/model.h"
#include "examples/gpt/options.h"
#include "godwit/ckpt/torch.h"
#include "godwit/runtime/run.h"
#include "godwit/runtime/sampler.h"

namespace godwit::gpt {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Rows of int64 bytes: inputs [rows, context] and targets [rows, context].
template <typename WindowOf>
std::pair<torch::Tensor, torch::Tensor> MakeBatch(std::span<const uint64_t> ids, int64_t context,
                                                  const WindowOf& window_of) {
  auto windows = torch::empty({static_cast<int64_t>(ids.size()), context + 1}, torch::kInt64);
  int64_t* out = windows.data_ptr<int64_t>();
  for (const uint64_t id : ids) {
    const std::span<const uint8_t> window = window_of(id);
    out = std::copy(window.begin(), window.end(), out);
  }
  return {windows.slice(1, 0, context), windows.slice(1, 1, context + 1)};
}

torch::Tensor Loss(Gpt& model, const torch::Tensor& inputs, const torch::Tensor& targets) {
  const auto logits = model->forward(inputs);
  return torch::nn::functional::cross_entropy(logits.reshape({-1, 256}), targets.reshape({-1}));
}

double LearningRate(const Options& o, uint64_t step) {
  if (step < o.warm_up) return o.learning_rate * double(step + 1) / double(o.warm_up);
  const double done = double(step - o.warm_up) / std::max(1.0, double(o.steps - o.warm_up));
  return o.learning_rate * (0.1 + 0.45 * (1 + std::cos(std::numbers::pi * std::min(1.0, done))));
}

// Mean loss over evenly spread held-out windows, the same on every rank; NaN when dropped midway.
double HeldOutLoss(Gpt& model, const Corpus& corpus, const Options& o,
                   const std::function<bool()>& tick) {
  torch::NoGradGuard no_grad;
  const uint64_t count = std::min<uint64_t>(o.eval_windows, corpus.held_out_windows());
  double sum = 0;
  for (uint64_t i = 0; i < count; i += o.micro_batch) {
    if (!tick()) return std::nan("");
    std::vector<uint64_t> ids;
    for (uint64_t j = i; j < std::min(count, i + o.micro_batch); ++j) {
      ids.push_back(j * corpus.held_out_windows() / count);
    }
    const auto [inputs, targets] =
        MakeBatch(ids, o.model.context, [&](uint64_t id) { return corpus.HeldOut(id); });
    sum += Loss(model, inputs, targets).item<double>() * double(ids.size());
  }
  return sum / double(count);
}

[[noreturn]] void Die(const Status& status) {
  std::fprintf(stderr, "gpt: %s\n", status.message().c_str());
  std::exit(1);
}

int Main(int argc, char** argv) {
  const Options o = ParseOrExit(argc, argv);
  at::set_num_threads(o.threads);
  torch::manual_seed(o.seed);

  auto run = Run::OpenOrExit(&argc, argv,
                             {.dir = o.dir,  // (1)
                              .steps = o.steps,
                              .snapshot_every = o.snapshot_every,
                              .persist_every = o.persist_every});
  const auto corpus = Corpus::Open(o.data, static_cast<uint64_t>(o.model.context), o.max_bytes);
  if (!corpus.ok()) Die(corpus.status());

  Gpt model(o.model);
  torch::optim::AdamW optimizer(
      model->parameters(),
      torch::optim::AdamWOptions(o.learning_rate).betas({0.9, 0.95}).weight_decay(0.1));
  Sampler sampler({.dataset_size = corpus->training_windows(),
                   .global_batch = o.global_batch,
                   .micro_batch = o.micro_batch,
                   .seed = o.seed});
  run.Track("model", *model).Track("optimizer", optimizer).Track("sampler", sampler);  // (2)
  const Restored from = run.Restore();

  auto audit = AuditLog::Open(o.audit, run.term(), run.epoch(), run.rank());
  if (!audit.ok()) Die(audit.status());
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> loss_log(nullptr, &std::fclose);
  const bool chief = run.rank() == 0;
  if (chief) {
    int64_t parameters = 0;
    for (const auto& p : model->parameters()) parameters += p.numel();
    std::printf(
        "gpt: %lld parameters, %llu bytes of text in %llu files, %u workers, %s\n",
        static_cast<long long>(parameters), static_cast<unsigned long long>(corpus->bytes()),
        static_cast<unsigned long long>(corpus->files()), run.world_size(), from.reason.c_str());
    if (!o.loss_log.empty()) {
      loss_log.reset(std::fopen(o.loss_log.c_str(), "ae"));
      if (loss_log == nullptr) Die(ErrnoError(errno, "--loss-log: open(" + o.loss_log + ")"));
    }
  }

  // Gradients and the loss are summed over the ranks in one call.
  const std::vector<torch::Tensor> parameters = model->parameters();
  std::vector<float*> buffers;
  std::vector<size_t> counts;
  float loss_sum = 0;
  for (const auto& p : parameters) {
    p.mutable_grad() = torch::zeros_like(p);
    buffers.push_back(p.grad().data_ptr<float>());
    counts.push_back(static_cast<size_t>(p.numel()));
  }
  buffers.push_back(&loss_sum);
  counts.push_back(1);

  auto print_held_out = [&](uint64_t step) {
    run.Phase("eval", [&](const std::function<bool()>& tick) {
      const double loss = HeldOutLoss(model, *corpus, o, tick);
      if (!chief || std::isnan(loss)) return;
      std::printf("step %llu held-out loss %.4f\n", static_cast<unsigned long long>(step), loss);
      std::fflush(stdout);
    });
  };

  for (Step& step : run.Steps()) {  // (3)
    const auto start = SteadyClock::now();
    loss_sum = 0;
    uint64_t samples = 0;
    for (const auto& p : parameters) p.grad().zero_();
    const uint64_t pass = sampler.pass();
    for (const auto& micro : step.Micro(sampler)) {
      const auto [inputs, targets] = MakeBatch(micro.ids(), o.model.context,
                                               [&](uint64_t id) { return corpus->Training(id); });
      audit->Add(step.index(), pass, micro.ids());
      const auto loss = Loss(model, inputs, targets) * micro.weight();
      loss.backward();
      loss_sum += loss.item<float>();
      samples += micro.ids().size();
    }
    if (const Status status = audit->EndStep(); !status.ok()) Die(status);
    step.AllReduceSum(buffers, counts);  // (4)
    step.Update([&] {                    // (5)
      static_cast<torch::optim::AdamWOptions&>(optimizer.param_groups()[0].options())
          .lr(LearningRate(o, step.index()));
      optimizer.step();
    });
    if (o.step_ms > 0) {
      std::this_thread::sleep_until(start + std::chrono::milliseconds(o.step_ms));
    }
    const double seconds = std::chrono::duration<double>(SteadyClock::now() - start).count();
    const double tokens_per_s = double(samples) * double(run.world_size()) *
                                double(o.model.context) / std::max(seconds, 1e-9);
    if (loss_log != nullptr) {
      std::fprintf(loss_log.get(), "%llu,%.6f,%.0f,%u,%llu,%llu\n",
                   static_cast<unsigned long long>(step.index() + 1), double(loss_sum),
                   tokens_per_s, run.world_size(), static_cast<unsigned long long>(run.term()),
                   static_cast<unsigned long long>(run.epoch()));
      std::fflush(loss_log.get());
    }
    if (chief && step.Every(10)) {
      std::printf("step %llu loss %.4f %.0f tokens/s\n",
                  static_cast<unsigned long long>(step.index() + 1), double(loss_sum),
                  tokens_per_s);
      std::fflush(stdout);
    }
    if (o.eval_every > 0 && step.Every(o.eval_every)) print_held_out(step.index() + 1);
  }
  if (run.done()) print_held_out(o.steps);
  return run.ExitCode();
}

}  // namespace
}  // namespace godwit::gpt

int main(int argc, char** argv) { return godwit::gpt::Main(argc, argv); }
