#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/digest.h"
#include "base/status.h"
#include "ckpt/format/save_id.h"

namespace godwit::ckpt {

inline constexpr uint64_t kMaxTermBytes = 4096;

// What a term goes on from. term == 0: from nothing.
struct Parent {
  uint64_t term = 0;  // save.term
  SaveId save;
  Digest128 manifest_digest;
};

// One start of a writer.
struct TermRecord {
  uint64_t term = 0;
  Parent parent;
  uint64_t created_unix_ms = 0;
  std::string host;  // at most 256 bytes, as is job_id: longer ones are cut
  int64_t pid = 0;
  std::string job_id;
};

// The name of the file: "t00000003". Parse accepts exactly that.
std::string TermName(uint64_t term);
Result<uint64_t> ParseTermName(std::string_view name);

std::string EncodeTerm(const TermRecord& record);
// DATA_LOSS naming the field; FAILED_PRECONDITION for another version.
Result<TermRecord> ParseTerm(ByteSpan bytes, std::string_view what);

}  // namespace godwit::ckpt
