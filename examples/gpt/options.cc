#include "examples/gpt/options.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <variant>

namespace gpt {
namespace {

using Field = std::variant<uint64_t*, double*, std::string*, std::vector<std::string>*>;

struct Flag {
  std::string_view name;
  Field field;
  std::string_view help;
};

std::vector<Flag> Flags(Options* o) {
  return {
      {"data", &o->data, "FILE, FOLDER or GLOB with text; may be given several times"},
      {"data-limit-mb", &o->data_limit_mb, "use at most so much of it"},
      {"dir", &o->dir, "checkpoint directory"},
      {"steps", &o->steps, "optimizer updates in all"},
      {"global-batch", &o->global_batch, "samples of one step over all workers"},
      {"micro-batch", &o->micro_batch, "samples of one forward and backward"},
      {"snapshot-every", &o->snapshot_every, "steps between snapshots in memory"},
      {"persist-every", &o->persist_every, "steps between saves to storage"},
      {"eval-every", &o->eval_every, "steps between evaluations on held-out text; 0: at the end"},
      {"eval-samples", &o->eval_samples, "samples of one evaluation"},
      {"seed", &o->seed, "of initialisation and of the order of samples"},
      {"threads", &o->threads, "per worker"},
      {"step-ms", &o->step_ms, "least time of a step, to pace demonstrations"},
      {"context", &o->context, "bytes that the model sees"},
      {"width", &o->width, "of the model"},
      {"layers", &o->layers, "of the model"},
      {"heads", &o->heads, "of attention; divide the width"},
      {"warmup", &o->warmup, "steps until the learning rate is reached"},
      {"lr", &o->lr, "learning rate"},
      {"weight-decay", &o->weight_decay, "of AdamW"},
      {"clip", &o->clip, "largest norm of the gradient"},
      {"loss-log", &o->loss_log, "FILE (CSV) that rank 0 appends a line per step to"},
      {"audit", &o->audit, "FOLDER for logs of the ids that each worker reads"},
  };
}

[[noreturn]] void Usage(const std::string& what) {
  std::fprintf(stderr, "gpt: %s; see gpt --help\n", what.c_str());
  std::exit(2);
}

void Help(const std::vector<Flag>& flags) {
  std::printf("Trains a byte-level GPT on text.\n\n  gpt --data 'src/*.h' --steps 500\n\n");
  for (const Flag& flag : flags) {
    std::string value;
    if (auto* const* n = std::get_if<uint64_t*>(&flag.field)) value = std::to_string(**n);
    if (auto* const* s = std::get_if<std::string*>(&flag.field)) value = **s;
    if (auto* const* d = std::get_if<double*>(&flag.field)) {
      char text[32];
      std::snprintf(text, sizeof(text), "%g", **d);
      value = text;
    }
    if (std::holds_alternative<std::vector<std::string>*>(flag.field)) value = GODWIT_GPT_DATA;
    std::printf("  --%-16s %s%s%s%s\n", std::string(flag.name).c_str(),
                std::string(flag.help).c_str(), value.empty() ? "" : " (", value.c_str(),
                value.empty() ? "" : ")");
  }
  std::exit(0);
}

template <typename T>
bool Parse(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

void Set(const Flag& flag, const std::string& value) {
  const std::string wrong = "--" + std::string(flag.name) + ": got '" + value + "', allowed: ";
  if (auto* const* n = std::get_if<uint64_t*>(&flag.field)) {
    if (!Parse(value, *n)) Usage(wrong + "a whole number");
  } else if (auto* const* d = std::get_if<double*>(&flag.field)) {
    if (!Parse(value, *d) || !std::isfinite(**d)) Usage(wrong + "a number");
  } else if (auto* const* s = std::get_if<std::string*>(&flag.field)) {
    **s = value;
  } else {
    std::get<std::vector<std::string>*>(flag.field)->push_back(value);
  }
}

void Need(bool holds, const char* what) {
  if (!holds) Usage(what);
}

}  // namespace

Options ParseOrExit(int argc, char** argv) {
  Options options;
  const std::vector<Flag> flags = Flags(&options);
  for (int i = 1; i < argc; ++i) {
    std::string_view arg = argv[i];
    if (arg == "--help" || arg == "-h") Help(flags);
    const size_t equals = arg.find('=');
    const std::string_view name = arg.substr(0, equals);
    const Flag* found = nullptr;
    for (const Flag& flag : flags) {
      if (name.starts_with("--") && name.substr(2) == flag.name) found = &flag;
    }
    if (found == nullptr) Usage("unknown option '" + std::string(arg) + "'");
    if (equals == std::string_view::npos && i + 1 == argc) {
      Usage(std::string(name) + " needs a value");
    }
    Set(*found, equals == std::string_view::npos ? argv[++i] : std::string(arg.substr(equals + 1)));
  }
  if (options.data.empty()) options.data.push_back(GODWIT_GPT_DATA);
  Need(options.steps > 0 && options.global_batch > 0, "--steps and --global-batch must be above 0");
  Need(options.threads > 0 && options.threads <= 1024, "--threads must be 1 to 1024");
  Need(options.context > 0 && options.context <= 65536, "--context must be 1 to 65536");
  Need(options.layers > 0 && options.layers <= 1000, "--layers must be 1 to 1000");
  Need(options.heads > 0 && options.width > 0 && options.width % options.heads == 0,
       "--width must be a multiple of --heads");
  return options;
}

}  // namespace gpt
