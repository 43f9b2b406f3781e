// Trains a byte-level GPT on text, data-parallel: alone, under `godwit run`, or as a job of the
// scheduler.
#include <godwit/runtime/run.h>
#include <godwit/runtime/sampler.h>
#include <godwit/runtime/torch.h>
#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <optional>
#include <thread>

#include "examples/gpt/corpus.h"
#include "examples/gpt/gpt.h"
#include "examples/gpt/options.h"
#include "examples/gpt/records.h"

namespace gpt {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

// Linear warm-up, then a cosine down to a tenth.
double LearningRate(const Options& options, uint64_t step) {
  if (step < options.warmup) {
    return options.lr * static_cast<double>(step + 1) / static_cast<double>(options.warmup);
  }
  if (options.steps <= options.warmup) return options.lr;
  const double done = static_cast<double>(step - options.warmup) /
                      static_cast<double>(options.steps - options.warmup);
  return options.lr * (0.55 + 0.45 * std::cos(std::numbers::pi * std::min(done, 1.0)));
}

// Rows of context + 1 bytes as int64 tokens.
template <typename Rows>
at::Tensor Tokens(const Rows& rows, uint64_t context) {
  const auto width = static_cast<int64_t>(context + 1);
  at::Tensor tokens = torch::empty({static_cast<int64_t>(rows.size()), width}, torch::kLong);
  int64_t* out = tokens.data_ptr<int64_t>();
  for (const std::string_view row : rows) {
    for (const char c : row) *out++ = static_cast<unsigned char>(c);
  }
  return tokens;
}

// Mean cross-entropy of the next byte, in nats.
at::Tensor Loss(Gpt& model, const at::Tensor& tokens) {
  const int64_t time = tokens.size(1) - 1;
  const at::Tensor logits = model.forward(tokens.narrow(1, 0, time));
  return torch::nn::functional::cross_entropy(logits.reshape({-1, 256}),
                                              tokens.narrow(1, 1, time).reshape({-1}));
}

// On the first samples of the held-out text; nothing when told to stop on the way.
std::optional<double> HeldOutLoss(Gpt& model, const Corpus& corpus, const Options& options,
                                  const std::function<bool()>& go_on) {
  const torch::NoGradGuard no_grad;
  const uint64_t count = std::min(options.eval_samples, corpus.held_out_samples());
  constexpr uint64_t kBatch = 16;
  double sum = 0;
  std::vector<std::string_view> rows;
  for (uint64_t i = 0; i < count; i += kBatch) {
    if (!go_on()) return std::nullopt;
    rows.clear();
    for (uint64_t j = i; j < std::min(i + kBatch, count); ++j) {
      // Spread over the whole of it.
      rows.push_back(corpus.held_out_sample(j * corpus.held_out_samples() / count));
    }
    sum += Loss(model, Tokens(rows, options.context)).item<double>() *
           static_cast<double>(rows.size());
  }
  return sum / static_cast<double>(count);
}

int Main(int argc, char** argv) {
  const Options options = ParseOrExit(argc, argv);
  at::set_num_threads(static_cast<int>(options.threads));
  at::set_num_interop_threads(1);
  auto run = godwit::Run::OpenOrExit(&argc, argv,
                                     {.dir = options.dir,
                                      .steps = options.steps,
                                      .snapshot_every = options.snapshot_every,
                                      .persist_every = options.persist_every});
  const Corpus corpus =
      Corpus::LoadOrExit(options.data, options.data_limit_mb << 20, options.context);

  // The same initial weights on every rank.
  torch::manual_seed(options.seed);
  Gpt model({.context = static_cast<int64_t>(options.context),
             .width = static_cast<int64_t>(options.width),
             .layers = static_cast<int64_t>(options.layers),
             .heads = static_cast<int64_t>(options.heads)});
  torch::optim::AdamW optimizer(
      model.parameters(),
      torch::optim::AdamWOptions(options.lr).betas({0.9, 0.95}).weight_decay(options.weight_decay));
  godwit::Sampler sampler({.dataset_size = corpus.train_samples(),
                           .global_batch = options.global_batch,
                           .micro_batch = options.micro_batch,
                           .seed = options.seed});
  at::Generator rng = at::detail::getDefaultCPUGenerator();
  run.Track("model", model).Track("opt", optimizer).Track("sampler", sampler);
  run.TrackPerRank("rng", rng);
  const godwit::Restored restored = run.Restore();

  const bool speaks = run.rank() == 0;
  if (speaks) {
    int64_t parameters = 0;
    for (const auto& p : model.parameters()) parameters += p.numel();
    std::printf(
        "%lld parameters; %llu bytes of text from %llu files, %llu samples of %llu bytes; "
        "%u workers; %s\n",
        static_cast<long long>(parameters), static_cast<unsigned long long>(corpus.bytes()),
        static_cast<unsigned long long>(corpus.files()),
        static_cast<unsigned long long>(corpus.train_samples()),
        static_cast<unsigned long long>(options.context), run.world_size(),
        restored.reason.c_str());
    std::fflush(stdout);
  }
  AuditLog audit = AuditLog::OpenOrExit(options.audit, run);
  LossLog loss_log = LossLog::OpenOrExit(options.loss_log, run);
  std::optional<double> last_held_out;

  Clock::time_point step_began = Clock::now();
  for (godwit::Step& step : run.Steps()) {
    optimizer.zero_grad();
    float loss = 0;  // this rank's part of the global batch's mean
    const uint64_t pass = sampler.pass();
    const uint64_t samples =
        std::min(options.global_batch, corpus.train_samples() - sampler.position());
    const auto micros = step.Micro(sampler);
    audit.Write(step.index(), pass, micros);
    std::vector<std::string_view> rows;
    for (const auto& micro : micros) {
      rows.clear();
      for (const uint64_t id : micro.ids()) rows.push_back(corpus.train_sample(id));
      const at::Tensor part = Loss(model, Tokens(rows, options.context)) * micro.weight();
      part.backward();
      loss += part.item<float>();
    }
    // A device would be waited for here.
    std::this_thread::sleep_until(step_began + std::chrono::milliseconds(options.step_ms));
    godwit::AllReduceGradients(step, model, &loss);
    step.Update([&] {
      torch::nn::utils::clip_grad_norm_(model.parameters(), options.clip);
      for (auto& group : optimizer.param_groups()) {
        group.options().set_lr(LearningRate(options, step.index()));
      }
      optimizer.step();
    });
    const Clock::time_point now = Clock::now();
    LossLine line{.updates = step.index() + 1, .loss = loss};
    line.tokens_per_s = static_cast<double>(samples * options.context) / Seconds(now - step_began);
    const bool last = step.index() + 1 == options.steps;
    if (last || (options.eval_every > 0 && step.Every(options.eval_every))) {
      run.Phase("eval", [&](const std::function<bool()>& go_on) {
        // The others go on to the next collective, and wait there.
        if (speaks) line.held_out_loss = HeldOutLoss(model, corpus, options, go_on);
      });
    }
    if (speaks) {
      std::printf("step %llu/%llu loss %.4f, %.0f tokens/s",
                  static_cast<unsigned long long>(line.updates),
                  static_cast<unsigned long long>(options.steps), line.loss, line.tokens_per_s);
      if (line.held_out_loss) std::printf(", held-out loss %.4f", *line.held_out_loss);
      std::printf("\n");
      std::fflush(stdout);
      loss_log.Write(line);
    }
    if (last) last_held_out = line.held_out_loss;
    step_began = Clock::now();
  }

  if (run.done() && speaks) {
    // A notice may have cut the last evaluation short.
    if (!last_held_out) {
      last_held_out = HeldOutLoss(model, corpus, options, [] { return true; });
    }
    std::printf("done: held-out loss %.6f after %llu steps\n", *last_held_out,
                static_cast<unsigned long long>(options.steps));
  }
  return run.ExitCode();
}

}  // namespace
}  // namespace gpt

int main(int argc, char** argv) {
  try {
    return gpt::Main(argc, argv);
  } catch (const std::exception& e) {
    const std::string what = e.what();
    // libtorch appends a stack; its first line says it all.
    std::fprintf(stderr, "gpt: %s\n", what.substr(0, what.find('\n')).c_str());
    std::_Exit(1);
  }
}
