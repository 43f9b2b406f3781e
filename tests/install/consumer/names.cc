// The checkpoint library alone, by its public headers.
#include <godwit/ckpt/state.h>

#include <iostream>

int main() {
  float weights[4] = {};
  godwit::ckpt::TensorRef tensor;
  tensor.name = "weights";
  tensor.shape = {4};
  tensor.data = weights;
  tensor.bytes = sizeof(weights);
  godwit::ckpt::StateList state;
  state.tensors.push_back(tensor);
  const godwit::Status status = godwit::ckpt::Validate(state);
  std::cout << godwit::ckpt::Name(godwit::ckpt::DType::kF32) << " " << status << "\n";
  return status.ok() ? 0 : 1;
}
