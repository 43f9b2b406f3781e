// The smallest program that survives being told to leave: it fits y = 3x + 1 by gradient descent.
#include <godwit/runtime/run.h>
#include <godwit/runtime/sampler.h>

#include <cstdio>

int main(int argc, char** argv) {
  auto run = godwit::Run::OpenOrExit(&argc, argv, {.dir = "runs/minimal", .steps = 2000});
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
    if (run.rank() == 0 && step.Every(500)) {
      std::printf("step %llu: y = %.4f x + %.4f\n",
                  static_cast<unsigned long long>(step.index() + 1), weights[0], weights[1]);
      std::fflush(stdout);
    }
  }
  return run.ExitCode();
}
