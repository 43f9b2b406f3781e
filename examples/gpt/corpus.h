#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace godwit::gpt {

// A text corpus as bytes, cut into windows of `window` bytes plus one (the last byte is only ever a
// target). One window in `kHeldOutEvery` is held out for evaluation, spread evenly.
class Corpus {
 public:
  static constexpr uint64_t kHeldOutEvery = 20;

  // `sources`: files, folders (all regular files below) or globs. Files are taken in the order of
  // their paths, so that the same sources give the same corpus; at most `max_bytes` are read.
  // Errors name the source: nothing matches, not readable, or too little text for one held-out and
  // one training window.
  static Result<Corpus> Open(const std::vector<std::string>& sources, uint64_t window,
                             uint64_t max_bytes);

  uint64_t bytes() const { return text_.size(); }
  uint64_t files() const { return files_; }
  uint64_t training_windows() const { return windows() - held_out_windows(); }
  uint64_t held_out_windows() const { return (windows() + kHeldOutEvery - 1) / kHeldOutEvery; }

  // window + 1 bytes. REQUIRES: index < training_windows(), or held_out_windows().
  std::span<const uint8_t> Training(uint64_t index) const;
  std::span<const uint8_t> HeldOut(uint64_t index) const;

 private:
  Corpus(std::vector<uint8_t> text, uint64_t window, uint64_t files)
      : text_(std::move(text)), window_(window), files_(files) {}
  uint64_t windows() const { return (text_.size() - 1) / window_; }
  std::span<const uint8_t> Window(uint64_t index) const;

  std::vector<uint8_t> text_;
  uint64_t window_;
  uint64_t files_;
};

}  // namespace godwit::gpt
