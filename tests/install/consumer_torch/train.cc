// Like consumer/train.cc, with a tensor of libtorch for the weights. Narrow headers: those of all
// of libtorch take half a minute to compile.
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <godwit/runtime/run.h>

#include <cstdlib>
#include <iostream>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: train DIR STEPS\n";
    return 2;
  }
  at::Tensor weights = at::zeros({16});
  godwit::RunOptions options;
  options.dir = argv[1];
  options.steps = std::strtoull(argv[2], nullptr, 10);
  options.snapshot_every = 1;
  godwit::Run run = godwit::Run::OpenOrExit(&argc, argv, options);

  godwit::ckpt::TensorRef tensor;
  tensor.name = "weights";
  tensor.shape = {16};
  tensor.data = weights.data_ptr();
  tensor.bytes = weights.nbytes();
  run.TrackTensor(tensor);
  const godwit::Restored restored = run.Restore();
  for (godwit::Step& step : run.Steps()) {
    step.Update([&] { weights.add_(1.0f); });
  }
  std::cout << "from " << (restored.fresh ? 0 : restored.step) << " weight "
            << weights[7].item<float>() << "\n";
  return run.ExitCode();
}
