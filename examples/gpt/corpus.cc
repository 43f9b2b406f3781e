#include "examples/gpt/corpus.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace godwit::gpt {

namespace {

namespace fs = std::filesystem;

// The regular files that one source names.
Result<std::vector<std::string>> FilesOf(const std::string& source) {
  std::vector<std::string> files;
  glob_t matches{};
  const int error = glob(source.c_str(), 0, nullptr, &matches);
  std::vector<std::string> paths(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
  globfree(&matches);
  if (error != 0) return NotFoundError("--data " + source + ": no such file, folder or match");
  for (const std::string& path : paths) {
    std::error_code code;
    if (fs::is_regular_file(path, code)) {
      files.push_back(path);
      continue;
    }
    fs::recursive_directory_iterator it(path, fs::directory_options::skip_permission_denied, code);
    for (; !code && it != fs::recursive_directory_iterator(); it.increment(code)) {
      if (it->is_regular_file(code)) files.push_back(it->path().string());
    }
    if (code) return UnknownError("--data " + path + ": " + code.message());
  }
  return files;
}

}  // namespace

Result<Corpus> Corpus::Open(const std::vector<std::string>& sources, uint64_t window,
                            uint64_t max_bytes) {
  std::vector<std::string> files;
  for (const std::string& source : sources) {
    GODWIT_ASSIGN_OR_RETURN(const std::vector<std::string> found, FilesOf(source));
    files.insert(files.end(), found.begin(), found.end());
  }
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());

  std::vector<uint8_t> text;
  uint64_t used = 0;
  for (const std::string& path : files) {
    if (text.size() >= max_bytes) break;
    std::ifstream in(path, std::ios::binary | std::ios::ate);
    const std::streamoff size = in ? static_cast<std::streamoff>(in.tellg()) : -1;
    if (size < 0) return PermissionDeniedError("--data " + path + ": cannot be read");
    const uint64_t take = std::min<uint64_t>(static_cast<uint64_t>(size), max_bytes - text.size());
    const size_t before = text.size();
    text.resize(before + take);
    in.seekg(0);
    in.read(reinterpret_cast<char*>(text.data() + before), static_cast<std::streamsize>(take));
    if (static_cast<uint64_t>(in.gcount()) != take) {
      return DataLossError("--data " + path + ": read " + std::to_string(in.gcount()) +
                           " bytes of " + std::to_string(take));
    }
    ++used;
  }
  const uint64_t needed = 2 * window + 1;
  if (text.size() < needed) {
    return InvalidArgumentError("--data: " + std::to_string(text.size()) + " bytes in " +
                                std::to_string(used) + " files, needed are at least " +
                                std::to_string(needed) +
                                " for one training and one held-out window");
  }
  return Corpus(std::move(text), window, used);
}

std::span<const uint8_t> Corpus::Window(uint64_t index) const {
  return std::span<const uint8_t>(text_).subspan(index * window_, window_ + 1);
}

std::span<const uint8_t> Corpus::HeldOut(uint64_t index) const {
  return Window(index * kHeldOutEvery);
}

std::span<const uint8_t> Corpus::Training(uint64_t index) const {
  // Window 0 of each group of kHeldOutEvery is held out.
  return Window(index + index / (kHeldOutEvery - 1) + 1);
}

}  // namespace godwit::gpt
