#include "base/bytes.h"

#include <bit>
#include <type_traits>

#include "base/check.h"

namespace godwit {

namespace {
// Byte by byte, so that it's right on every host; compilers make it one move.
template <typename T>
void Store(char* out, T v) {
  for (size_t i = 0; i < sizeof(T); ++i) out[i] = static_cast<char>(v >> (8 * i));
}

template <typename T>
void Put(std::string& out, T v) {
  char buffer[sizeof(T)];
  Store(buffer, v);
  out.append(buffer, sizeof(T));
}

template <typename T>
T Load(ByteSpan in) {
  T v = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    v = static_cast<T>(v | static_cast<T>(std::to_integer<T>(in[i]) << (8 * i)));
  }
  return v;
}
}  // namespace

void ByteWriter::U8(uint8_t v) { out_.push_back(static_cast<char>(v)); }
void ByteWriter::U16(uint16_t v) { Put(out_, v); }
void ByteWriter::U32(uint32_t v) { Put(out_, v); }
void ByteWriter::U64(uint64_t v) { Put(out_, v); }
void ByteWriter::I64(int64_t v) { Put(out_, static_cast<uint64_t>(v)); }
void ByteWriter::F64(double v) { Put(out_, std::bit_cast<uint64_t>(v)); }
void ByteWriter::Bytes(ByteSpan bytes) { out_.append(AsString(bytes)); }

void ByteWriter::String(std::string_view s) {
  GODWIT_CHECK(s.size() <= UINT32_MAX);
  U32(static_cast<uint32_t>(s.size()));
  out_.append(s);
}

void ByteWriter::Zeros(size_t n) { out_.append(n, '\0'); }

void ByteWriter::Align(size_t alignment) {
  GODWIT_CHECK(std::has_single_bit(alignment));
  Zeros(-out_.size() & (alignment - 1));
}

void ByteWriter::PatchU32(size_t at, uint32_t v) {
  GODWIT_CHECK(at <= out_.size() && out_.size() - at >= sizeof(v));
  Store(out_.data() + at, v);
}

void ByteWriter::PatchU64(size_t at, uint64_t v) {
  GODWIT_CHECK(at <= out_.size() && out_.size() - at >= sizeof(v));
  Store(out_.data() + at, v);
}

bool ByteReader::Need(size_t n) {
  if (!status_.ok()) return false;
  if (n <= remaining()) return true;
  Fail("ends early: " + std::to_string(n) + " bytes wanted, " + std::to_string(remaining()) +
       " left");
  return false;
}

void ByteReader::Fail(std::string_view message) {
  if (!status_.ok()) return;
  status_ =
      DataLossError(what_ + ": " + std::string(message) + " at offset " + std::to_string(offset_));
}

ByteSpan ByteReader::ReadBytes(size_t n) {
  if (!Need(n)) return {};
  const ByteSpan bytes = bytes_.subspan(offset_, n);
  offset_ += n;
  return bytes;
}

uint8_t ByteReader::ReadU8() { return Need(1) ? Load<uint8_t>(ReadBytes(1)) : 0; }
uint16_t ByteReader::ReadU16() { return Need(2) ? Load<uint16_t>(ReadBytes(2)) : 0; }
uint32_t ByteReader::ReadU32() { return Need(4) ? Load<uint32_t>(ReadBytes(4)) : 0; }
uint64_t ByteReader::ReadU64() { return Need(8) ? Load<uint64_t>(ReadBytes(8)) : 0; }
int64_t ByteReader::ReadI64() { return static_cast<int64_t>(ReadU64()); }
double ByteReader::ReadF64() { return std::bit_cast<double>(ReadU64()); }

std::string ByteReader::ReadString(size_t max) {
  if (!Need(4)) return {};
  const size_t length = Load<uint32_t>(bytes_.subspan(offset_, 4));
  if (length > max) {
    Fail("string of " + std::to_string(length) + " bytes, allowed: " + std::to_string(max));
    return {};
  }
  offset_ += 4;
  return std::string(AsString(ReadBytes(length)));
}

void ByteReader::Skip(size_t n) { ReadBytes(n); }

Status ByteReader::Finish() const {
  if (!status_.ok() || remaining() == 0) return status_;
  return DataLossError(what_ + ": " + std::to_string(remaining()) + " bytes left over at offset " +
                       std::to_string(offset_));
}

}  // namespace godwit
