#include "control/shared_bytes.h"

#include <algorithm>

namespace godwit {

std::string LoadSharedBytes(const char* field, size_t size) {
  std::string out(size, '\0');
  for (size_t i = 0; i < size; ++i) out[i] = LoadShared(field[i]);
  return out;
}

void StoreSharedBytes(char* field, std::string_view bytes) {
  for (size_t i = 0; i < bytes.size(); ++i) StoreShared(field[i], bytes[i]);
}

std::string LoadSharedText(const char* field, size_t capacity) {
  std::string out;
  for (size_t i = 0; i < capacity; ++i) {
    const char c = LoadShared(field[i]);
    if (c == '\0') break;
    out.push_back(c >= ' ' && c <= '~' ? c : '?');
  }
  return out;
}

void StoreSharedText(char* field, size_t capacity, std::string_view text) {
  const std::string_view kept = text.substr(0, std::min(text.size(), capacity - 1));
  StoreSharedBytes(field, kept);
  StoreShared(field[kept.size()], '\0');
}

void BeginSharedWrite(std::atomic<uint32_t>& seq) {
  // An exchange rather than a store: what follows must not be seen before the word is odd.
  const uint32_t now = seq.load(std::memory_order_relaxed);
  seq.exchange(now | 1, std::memory_order_acq_rel);
}

void EndSharedWrite(std::atomic<uint32_t>& seq) {
  seq.store((seq.load(std::memory_order_relaxed) | 1) + 1, std::memory_order_release);
}

}  // namespace godwit
