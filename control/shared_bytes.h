#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace godwit {

// Plain fields of the control page, which another process may be writing to at this moment: each
// access is atomic by itself, so that what is read is old or new but never undefined.

template <typename T>
T LoadShared(const T& field) {
  // Acquire: a sequence lock's second look at its word must come after.
  return std::atomic_ref<T>(const_cast<T&>(field)).load(std::memory_order_acquire);
}
template <typename T>
void StoreShared(T& field, T value) {
  std::atomic_ref<T>(field).store(value, std::memory_order_relaxed);
}

// The first `size` bytes of a field. REQUIRES: size <= the field's.
std::string LoadSharedBytes(const char* field, size_t size);
void StoreSharedBytes(char* field, std::string_view bytes);

// A NUL-terminated text field of `capacity` bytes, in which the other side may have left anything:
// cut at its end, and bytes that are not printable ASCII come as '?'.
std::string LoadSharedText(const char* field, size_t capacity);
// Cut to capacity - 1 bytes.
void StoreSharedText(char* field, size_t capacity, std::string_view text);

// Sequence locks (page.h). One writer at a time.
void BeginSharedWrite(std::atomic<uint32_t>& seq);
void EndSharedWrite(std::atomic<uint32_t>& seq);

// Calls `read` until it ran within one state of the word; false when that was not to be had in a
// few tries (the writer is in the middle, or died there). *at is the word then.
template <typename F>
bool ReadShared(const std::atomic<uint32_t>& seq, uint32_t* at, F&& read) {
  for (int tries = 0; tries < 64; ++tries) {
    const uint32_t before = seq.load(std::memory_order_acquire);
    *at = before;
    if ((before & 1) != 0) continue;
    read();
    if (seq.load(std::memory_order_acquire) == before) return true;
  }
  return false;
}

}  // namespace godwit
