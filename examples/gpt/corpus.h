#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpt {

// Text, cut into samples of context + 1 bytes that overlap by one. A twentieth, block by block, is
// held out. The same on every worker that sees the same files.
class Corpus {
 public:
  // Reads files, folders (with all below them) and globs, in the order of their paths, up to
  // `limit_bytes`. Ends the process with one line when nothing readable is there or it is too
  // short.
  static Corpus LoadOrExit(const std::vector<std::string>& sources, uint64_t limit_bytes,
                           uint64_t context);

  uint64_t train_samples() const { return Samples(train_); }
  uint64_t held_out_samples() const { return Samples(held_out_); }
  // context + 1 bytes. REQUIRES: i below the number of samples.
  std::string_view train_sample(uint64_t i) const { return Sample(train_, i); }
  std::string_view held_out_sample(uint64_t i) const { return Sample(held_out_, i); }
  uint64_t bytes() const { return train_.size() + held_out_.size(); }
  uint64_t files() const { return files_; }

 private:
  uint64_t Samples(const std::string& text) const {
    return text.empty() ? 0 : (text.size() - 1) / context_;
  }
  std::string_view Sample(const std::string& text, uint64_t i) const {
    return std::string_view(text).substr(i * context_, context_ + 1);
  }

  uint64_t context_ = 0;
  uint64_t files_ = 0;
  std::string train_;
  std::string held_out_;
};

}  // namespace gpt
