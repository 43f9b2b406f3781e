// The smallest program that survives being told to leave: it fits y = 3x + 1 by gradient descent.
#include <godwit/runtime/run.h>
#include <godwit/runtime/sampler.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

int main(int argc, char** argv) {
  const bool has_steps = argc == 3 && std::strcmp(argv[1], "--steps") == 0;
  const long long steps = has_steps ? std::atoll(argv[2]) : 2000;
  if ((argc > 1 && !has_steps) || steps < 1) {
    std::fprintf(stderr, "usage: minimal [--steps N]\n");
    return 2;
  }
  auto run = godwit::Run::OpenOrExit(
      &argc, argv, {.dir = "runs/minimal", .steps = static_cast<uint64_t>(steps)});
  std::vector<float> weights = {0, 0};
  godwit::Sampler sampler({.dataset_size = 1000, .global_batch = 32, .seed = 1});
  run.Track("weights", weights).Track("sampler", sampler);
  run.Restore();

  for (godwit::Step& step : run.Steps()) {
    float gradient[2] = {0, 0};
    for (const auto& micro : step.Micro(sampler)) {
      for (const uint64_t id : micro.ids()) {
        const float x = static_cast<float>(id) / 1000;
        const float error = weights[0] * x + weights[1] - (3 * x + 1);
        const float scale = static_cast<float>(micro.weight() / micro.ids().size());
        gradient[0] += scale * error * x;
        gradient[1] += scale * error;
      }
    }
    step.AllReduceSum(gradient, 2);
    step.Update([&] {
      weights[0] -= 0.5f * gradient[0];
      weights[1] -= 0.5f * gradient[1];
    });
    const auto done = static_cast<long long>(step.index() + 1);
    if (run.rank() == 0 && (step.Every(500) || done == steps)) {
      std::printf("step %lld: y = %.4f x + %.4f\n", done, weights[0], weights[1]);
      std::fflush(stdout);
    }
  }
  return run.ExitCode();
}
