#include "examples/gpt/options.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

namespace godwit::gpt {

Options ParseOrExit(int argc, char** argv) {
  Options o;
  CLI::App app(
      "Trains a byte-level GPT. Example:\n"
      "  godwit run --nproc-per-node 2 --dir ckpt -- gpt --data src/ --steps 500");
  app.add_option("--data", o.data,
                 "files, folders or globs (default: libtorch's own header files)");
  app.add_option("--max-bytes", o.max_bytes, "read at most this much text")->capture_default_str();
  app.add_option("--dir", o.dir, "checkpoint directory (default: none, or the launcher's)");
  app.add_option("--steps", o.steps, "optimizer updates in all")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--global-batch", o.global_batch, "samples of one update, over all ranks")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--micro-batch", o.micro_batch, "samples of one forward and backward")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--seed", o.seed, "of the weights and the order of the data")
      ->capture_default_str();
  app.add_option("--lr", o.learning_rate, "peak learning rate")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--warm-up", o.warm_up, "steps to the peak; then a cosine to a tenth of it")
      ->capture_default_str();
  app.add_option("--eval-every", o.eval_every, "steps between evaluations; 0: only at the end")
      ->capture_default_str();
  app.add_option("--eval-windows", o.eval_windows, "held-out samples of one evaluation")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--snapshot-every", o.snapshot_every, "steps between snapshots in memory")
      ->capture_default_str();
  app.add_option("--persist-every", o.persist_every, "steps between saves to storage")
      ->capture_default_str();
  app.add_option("--threads", o.threads, "of one worker")
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  app.add_option("--step-ms", o.step_ms, "let a step last at least this long")
      ->capture_default_str();
  app.add_option("--loss-log", o.loss_log, "append step,loss,tokens/s,… here (CSV, rank 0)");
  app.add_option("--audit", o.audit, "write the ids of the samples read into this folder");
  app.add_option("--layers", o.model.layers)->capture_default_str()->check(CLI::Range(1, 1024));
  app.add_option("--width", o.model.width)->capture_default_str()->check(CLI::Range(1, 65536));
  app.add_option("--heads", o.model.heads)->capture_default_str()->check(CLI::Range(1, 1024));
  app.add_option("--context", o.model.context, "bytes of one sample")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  try {
    app.parse(argc, argv);
    if (o.model.width % o.model.heads != 0) {
      throw CLI::ValidationError("--width: got " + std::to_string(o.model.width) +
                                 ", allowed: a multiple of --heads (" +
                                 std::to_string(o.model.heads) + ")");
    }
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    std::exit(0);
  } catch (const CLI::Error& error) {
    std::fprintf(stderr, "gpt: %s (see gpt --help)\n", error.what());
    std::exit(2);
  }
  if (o.data.empty()) o.data = {GODWIT_GPT_DEFAULT_DATA};
  return o;
}

}  // namespace godwit::gpt
