#include "ckpt/format/term.h"

#include <fmt/core.h>

#include "base/strings.h"
#include "ckpt/format/version.h"

namespace godwit::ckpt {
namespace {

constexpr std::string_view kMagic("GWTERM\0\n", 8);
constexpr size_t kMaxTextBytes = 256;

}  // namespace

std::string TermName(uint64_t term) { return fmt::format("t{:08}", term); }

Result<uint64_t> ParseTermName(std::string_view name) {
  if (!name.empty() && name.front() == 't') {
    auto term = ParseUint64(name.substr(1));
    if (term.ok() && *term > 0 && TermName(*term) == name) return *term;
  }
  return InvalidArgumentError(
      fmt::format("term '{}': allowed is t<8 digits>, from 1 on", name.substr(0, 64)));
}

std::string EncodeTerm(const TermRecord& record) {
  ByteWriter out;
  out.Bytes(kMagic);
  out.U32(kFormatVersion);
  out.U64(0);  // must_understand
  out.U64(0);  // may_ignore
  out.U64(record.term);
  out.U64(record.parent.term);
  out.U64(record.parent.save.term);
  out.U64(record.parent.save.step);
  out.U32(record.parent.save.attempt);
  out.U64(record.parent.manifest_digest.hi);
  out.U64(record.parent.manifest_digest.lo);
  out.U64(record.created_unix_ms);
  out.I64(record.pid);
  out.String(std::string_view(record.host).substr(0, kMaxTextBytes));
  out.String(std::string_view(record.job_id).substr(0, kMaxTextBytes));
  Seal(out);
  return out.Take();
}

Result<TermRecord> ParseTerm(ByteSpan bytes, std::string_view what) {
  if (bytes.size() > kMaxTermBytes) {
    return DataLossError(
        fmt::format("{}: {} bytes, allowed are {}", what, bytes.size(), kMaxTermBytes));
  }
  GODWIT_RETURN_IF_ERROR(CheckSealed(bytes, kMagic, what));
  ByteReader in(bytes.first(bytes.size() - kSealBytes).subspan(12), what);
  GODWIT_RETURN_IF_ERROR(CheckFeatures(what, in.ReadU64(), 0));
  in.ReadU64();  // may_ignore
  TermRecord record;
  record.term = in.ReadU64();
  record.parent.term = in.ReadU64();
  record.parent.save.term = in.ReadU64();
  record.parent.save.step = in.ReadU64();
  record.parent.save.attempt = in.ReadU32();
  record.parent.manifest_digest.hi = in.ReadU64();
  record.parent.manifest_digest.lo = in.ReadU64();
  record.created_unix_ms = in.ReadU64();
  record.pid = in.ReadI64();
  record.host = in.ReadString(kMaxTextBytes);
  record.job_id = in.ReadString(kMaxTextBytes);
  GODWIT_RETURN_IF_ERROR(in.Finish());
  // Parents are older: whoever walks them comes to an end.
  if (record.term == 0 || record.parent.term >= record.term ||
      record.parent.save.term != record.parent.term) {
    return DataLossError(fmt::format("{}: term {} with parent term {} and save {}", what,
                                     record.term, record.parent.term,
                                     ToString(record.parent.save)));
  }
  return record;
}

}  // namespace godwit::ckpt
