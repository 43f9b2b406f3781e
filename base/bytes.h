#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace godwit {

using ByteSpan = std::span<const std::byte>;
using MutableByteSpan = std::span<std::byte>;

inline ByteSpan AsBytes(std::string_view s) {
  return {reinterpret_cast<const std::byte*>(s.data()), s.size()};
}
inline std::string_view AsString(ByteSpan b) {
  return {reinterpret_cast<const char*>(b.data()), b.size()};
}

// Appends little-endian integers and raw bytes to a string; the encoding of all of our on-disk and
// shared structures.
class ByteWriter {
 public:
  ByteWriter() = default;

  void U8(uint8_t v);
  void U16(uint16_t v);
  void U32(uint32_t v);
  void U64(uint64_t v);
  void I64(int64_t v);
  void F64(double v);  // the IEEE 754 bits
  void Bytes(ByteSpan bytes);
  void Bytes(std::string_view bytes) { Bytes(AsBytes(bytes)); }
  // A u32 length, then the bytes. REQUIRES: size < 2^32.
  void String(std::string_view s);
  void Zeros(size_t n);
  // Zeros until size() is a multiple of `alignment` (a power of two).
  void Align(size_t alignment);
  // Overwrites 4 or 8 bytes already written. REQUIRES: they lie within size().
  void PatchU32(size_t at, uint32_t v);
  void PatchU64(size_t at, uint64_t v);

  size_t size() const { return out_.size(); }
  void Reserve(size_t n) { out_.reserve(n); }
  ByteSpan bytes() const { return AsBytes(out_); }
  const std::string& str() const { return out_; }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

// Reads what ByteWriter wrote, from bytes that may be hostile: never reads outside of them. The
// first failure sticks: from then on every read returns zero or empty, and ok() is false, so that
// a structure is read in one go and checked once.
class ByteReader {
 public:
  // Borrows `bytes`. `what` names the object in errors ("manifest").
  explicit ByteReader(ByteSpan bytes, std::string_view what = "bytes")
      : bytes_(bytes), what_(what) {}

  uint8_t ReadU8();
  uint16_t ReadU16();
  uint32_t ReadU32();
  uint64_t ReadU64();
  int64_t ReadI64();
  double ReadF64();
  // A view of the next n bytes.
  ByteSpan ReadBytes(size_t n);
  // What ByteWriter::String wrote; fails when it's longer than `max`.
  std::string ReadString(size_t max);
  void Skip(size_t n);

  size_t offset() const { return offset_; }
  size_t remaining() const { return bytes_.size() - offset_; }
  bool ok() const { return status_.ok(); }
  // DATA_LOSS with what, offset and length wanted, once a read has failed.
  const Status& status() const { return status_; }
  // status(); or DATA_LOSS when bytes are left over.
  Status Finish() const;
  // Makes the reader fail with DATA_LOSS "<what>: <message> at offset <n>", unless it already has.
  void Fail(std::string_view message);

 private:
  bool Need(size_t n);

  ByteSpan bytes_;
  std::string what_;
  size_t offset_ = 0;
  Status status_;
};

}  // namespace godwit
