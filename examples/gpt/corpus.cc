#include "examples/gpt/corpus.h"

#include <glob.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace gpt {
namespace {

constexpr uint64_t kBlocksPerHeldOut = 20;
constexpr uint64_t kMaxBlockBytes = 16 * 1024;

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "gpt: %s\n", what.c_str());
  std::exit(78);
}

// The regular files that one source names.
std::vector<std::string> Expand(const std::string& source) {
  namespace fs = std::filesystem;
  std::vector<std::string> named;
  std::error_code error;
  if (fs::exists(source, error)) {
    named.push_back(source);
  } else {
    glob_t found = {};
    if (glob(source.c_str(), GLOB_TILDE, nullptr, &found) == 0) {
      named.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    }
    globfree(&found);
  }
  std::vector<std::string> files;
  for (const std::string& path : named) {
    if (!fs::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    for (auto it = fs::recursive_directory_iterator(
             path, fs::directory_options::skip_permission_denied, error);
         !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
      if (it->is_regular_file(error)) files.push_back(it->path().string());
    }
  }
  if (files.empty()) Fail("--data '" + source + "': no such file, folder or glob");
  return files;
}

}  // namespace

Corpus Corpus::LoadOrExit(const std::vector<std::string>& sources, uint64_t limit_bytes,
                          uint64_t context) {
  std::vector<std::string> files;
  for (const std::string& source : sources) {
    const auto some = Expand(source);
    files.insert(files.end(), some.begin(), some.end());
  }
  // A folder lists its files in any order; workers must agree.
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  std::string text;
  Corpus corpus;
  corpus.context_ = context;
  for (const std::string& file : files) {
    if (text.size() >= limit_bytes) break;
    std::ifstream in(file, std::ios::binary);
    if (!in) Fail("cannot read '" + file + "'");
    text.append(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    ++corpus.files_;
  }
  if (text.size() > limit_bytes) text.resize(limit_bytes);
  // Small texts have small blocks, so that something is always held out.
  const uint64_t block = std::clamp<uint64_t>(text.size() / (2 * kBlocksPerHeldOut), 1,
                                              std::max(kMaxBlockBytes, 2 * context));
  for (uint64_t begin = 0, i = 0; begin < text.size(); begin += block, ++i) {
    (i % kBlocksPerHeldOut == kBlocksPerHeldOut - 1 ? corpus.held_out_ : corpus.train_)
        .append(text, begin, block);
  }
  if (corpus.train_samples() == 0 || corpus.held_out_samples() == 0) {
    Fail("--data: " + std::to_string(text.size()) + " bytes of text are too few for --context " +
         std::to_string(context));
  }
  return corpus;
}

}  // namespace gpt
