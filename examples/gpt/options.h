#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "examples/gpt/model.h"

namespace godwit::gpt {

struct Options {
  std::vector<std::string> data;
  uint64_t max_bytes = 16ull << 20;
  std::string dir;
  uint64_t steps = 300;
  uint64_t global_batch = 24;
  uint64_t micro_batch = 8;
  uint64_t seed = 1;
  double learning_rate = 3e-3;
  uint64_t warm_up = 20;
  uint64_t eval_every = 50;
  uint64_t eval_windows = 64;
  uint64_t snapshot_every = 5;
  uint64_t persist_every = 100;
  int threads = 1;
  uint64_t step_ms = 0;  // a step lasts at least this long
  std::string loss_log;  // CSV, written by rank 0
  std::string audit;     // folder of the data set's own log
  ModelOptions model;
};

// Parses the command line. Ends the process for --help (0) and for wrong usage (2, one line).
Options ParseOrExit(int argc, char** argv);

}  // namespace godwit::gpt
