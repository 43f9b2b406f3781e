#include "master/process/journal.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/strings.h"
#include "master/core/durable.h"

namespace godwit::master {
namespace {

constexpr std::string_view kPrefix = "journal.";
constexpr uint64_t kMagic = 0x304c4e524a4d5747ull;  // "GWMJRNL0"
constexpr uint64_t kRotateBytes = 1 << 20;
constexpr uint64_t kMaxFileBytes = 64 << 20;
constexpr size_t kMaxBootId = 64;

std::string Record(const Durable& durable) {
  const std::string payload = EncodeDurable(durable);
  const Digest128 digest = DigestOf(AsBytes(payload));
  ByteWriter out;
  out.U32(static_cast<uint32_t>(payload.size()));
  out.U64(digest.hi);
  out.U64(digest.lo);
  out.Bytes(payload);
  return out.Take();
}

struct Contents {
  std::string boot_id;
  std::optional<Durable> newest;
};

// The newest whole record. What does not check ends the file: nothing behind it was ever promised.
Result<Contents> Parse(const std::string& path, const std::string& bytes) {
  Contents contents;
  ByteReader in(AsBytes(bytes), path);
  if (in.ReadU64() != kMagic) return contents;
  contents.boot_id = in.ReadString(kMaxBootId);
  while (in.ok() && in.remaining() > 0) {
    const uint32_t size = in.ReadU32();
    Digest128 digest;
    digest.hi = in.ReadU64();
    digest.lo = in.ReadU64();
    const ByteSpan payload = in.ReadBytes(size);
    if (!in.ok() || DigestOf(payload) != digest) break;
    // Whole, so what is in it was meant: a version that can't be read must not be passed over.
    GODWIT_ASSIGN_OR_RETURN(contents.newest, DecodeDurable(payload));
  }
  return contents;
}

}  // namespace

std::string Journal::Path(uint64_t number) const {
  return JoinPath(dir_, fmt::format("{}{:08}", kPrefix, number));
}

Result<std::unique_ptr<Journal>> Journal::Open(FileSystem& fs, std::string dir,
                                               std::string boot_id) {
  GODWIT_RETURN_IF_ERROR(fs.CreateDirs(dir));
  std::unique_ptr<Journal> journal(new Journal(fs, std::move(dir), std::move(boot_id)));
  GODWIT_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, fs.List(journal->dir_));
  std::vector<uint64_t> numbers;
  for (const DirEntry& entry : entries) {
    if (!entry.name.starts_with(kPrefix)) continue;
    const auto number = ParseUint64(std::string_view(entry.name).substr(kPrefix.size()));
    if (number.ok()) numbers.push_back(*number);
  }
  std::sort(numbers.rbegin(), numbers.rend());
  for (const uint64_t number : numbers) {
    const std::string path = journal->Path(number);
    GODWIT_ASSIGN_OR_RETURN(const std::string bytes, fs.ReadFile(path, kMaxFileBytes));
    auto contents = Parse(path, bytes);
    if (!contents.ok()) return contents.status().Annotate(path);
    if (!contents->newest) continue;
    journal->recovered_ = std::move(contents->newest);
    journal->same_boot_ = contents->boot_id == journal->boot_id_;
    break;
  }
  if (!numbers.empty()) journal->number_ = numbers.front();
  journal->older_ = numbers;
  if (!numbers.empty() && !journal->recovered_) {
    // Masters that died while they made their first record, or a damaged disk: agents tell the
    // rest, and what they run is started again.
    LogWarning("journal {}: no whole record in {} files", journal->dir_, numbers.size());
  }
  if (journal->recovered_) GODWIT_RETURN_IF_ERROR(journal->Rotate(*journal->recovered_));
  return journal;
}

Status Journal::Rotate(const Durable& durable) {
  file_.reset();
  const uint64_t number = number_ + 1;
  const std::string path = Path(number);
  GODWIT_ASSIGN_OR_RETURN(auto file, fs_.CreateExclusive(path));
  number_ = number;
  const std::vector<uint64_t> replaced = older_;
  older_.push_back(number);
  ByteWriter header;
  header.U64(kMagic);
  header.String(std::string_view(boot_id_).substr(0, kMaxBootId));
  GODWIT_RETURN_IF_ERROR(file->Append(header.bytes()));
  GODWIT_RETURN_IF_ERROR(file->Append(AsBytes(Record(durable))));
  GODWIT_RETURN_IF_ERROR(file->Sync());
  GODWIT_RETURN_IF_ERROR(fs_.SyncDir(dir_));
  file_ = std::move(file);
  older_ = {number};
  for (const uint64_t old : replaced) {
    if (Status s = fs_.Unlink(Path(old)); !s.ok() && s.code() != StatusCode::kNotFound) {
      older_.insert(older_.begin(), old);
      LogWarning("journal: {}", s.message());
    }
  }
  return OkStatus();
}

Status Journal::Append(const Durable& durable) {
  if (file_ == nullptr || file_->offset() > kRotateBytes) return Rotate(durable);
  Status status = file_->Append(AsBytes(Record(durable)));
  if (status.ok()) status = file_->Sync();
  if (!status.ok()) file_.reset();
  return status;
}

}  // namespace godwit::master
