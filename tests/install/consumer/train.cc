// "Trains" sixteen weights for the steps given and says what it found and what it has at the end.
#include <godwit/runtime/run.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: train DIR STEPS\n";
    return 2;
  }
  std::vector<float> weights(16, 0.0f);
  godwit::RunOptions options;
  options.dir = argv[1];
  options.steps = std::strtoull(argv[2], nullptr, 10);
  options.snapshot_every = 1;
  godwit::Run run = godwit::Run::OpenOrExit(&argc, argv, options);

  godwit::ckpt::TensorRef tensor;
  tensor.name = "weights";
  tensor.shape = {16};
  tensor.data = weights.data();
  tensor.bytes = weights.size() * sizeof(float);
  run.TrackTensor(tensor);
  const godwit::Restored restored = run.Restore();
  for (godwit::Step& step : run.Steps()) {
    step.Update([&] {
      for (float& weight : weights) weight += 1.0f;
    });
  }
  std::cout << "from " << (restored.fresh ? 0 : restored.step) << " weight " << weights[7] << "\n";
  return run.ExitCode();
}
