#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpt {

struct Options {
  std::vector<std::string> data;  // files, folders or globs
  uint64_t data_limit_mb = 16;
  std::string dir = "runs/gpt";
  uint64_t steps = 300;
  uint64_t global_batch = 24;
  uint64_t micro_batch = 8;
  uint64_t snapshot_every = 10;
  uint64_t persist_every = 100;
  uint64_t eval_every = 50;
  uint64_t eval_samples = 64;
  uint64_t seed = 1;
  uint64_t threads = 1;
  uint64_t step_ms = 0;    // least time of a step, to pace demonstrations
  uint64_t context = 128;  // bytes
  uint64_t width = 128;
  uint64_t layers = 4;
  uint64_t heads = 4;
  uint64_t warmup = 20;  // steps
  double lr = 1e-3;
  double weight_decay = 0.1;
  double clip = 1.0;     // of the gradient's norm
  std::string loss_log;  // CSV, appended to by rank 0; empty: none
  std::string audit;     // folder for the ids that were read; empty: none
};

// Options out of the command line. Prints --help to stdout, or what is wrong (one line) to stderr,
// and exits (0, 2).
Options ParseOrExit(int argc, char** argv);

}  // namespace gpt
