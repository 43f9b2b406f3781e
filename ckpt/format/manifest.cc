#include "ckpt/format/manifest.h"

#include <fmt/core.h>

#include <optional>

#include "ckpt/format/version.h"

namespace godwit::ckpt {
namespace {

constexpr std::string_view kMagic("GWCOMMIT", 8);
constexpr uint64_t kHeadBytes = 8 + 4 + 8 + 8 + 8 + 8 + 4 + 4;

}  // namespace

uint64_t Manifest::bytes() const {
  uint64_t total = 0;
  for (const PackTail& t : tails) total += t.file_bytes;
  return total;
}

Result<Manifest> MakeManifest(const SaveId& save, const std::vector<std::string>& tails) {
  const std::string what = fmt::format("commit of {}", ToString(save));
  if (tails.empty() || tails.size() > kMaxWorldSize) {
    return DataLossError(
        fmt::format("{}: {} tails, allowed are 1 to {}", what, tails.size(), kMaxWorldSize));
  }
  Manifest manifest;
  manifest.save = save;
  manifest.world_size = static_cast<uint32_t>(tails.size());
  std::vector<std::optional<PackTail>> by_rank(tails.size());
  std::vector<const std::string*> encoded(tails.size());
  const PackTail* first = nullptr;
  for (const std::string& bytes : tails) {
    auto parsed = ParsePackTail(AsBytes(bytes), what);
    if (!parsed.ok()) return parsed.status();
    const PackTail& tail = *parsed;
    const auto differs = [&](std::string_view field, std::string got, std::string allowed) {
      return DataLossError(fmt::format("{}: the pack of rank {} has {} {}, allowed is {}", what,
                                       tail.rank, field, got, allowed));
    };
    if (tail.save != save) return differs("save id", ToString(tail.save), ToString(save));
    if (tail.world_size != tails.size()) {
      return differs("world size", std::to_string(tail.world_size), std::to_string(tails.size()));
    }
    if (by_rank[tail.rank]) {
      return DataLossError(fmt::format("{}: two packs of rank {}", what, tail.rank));
    }
    if (first && tail.shared_hash != first->shared_hash) {
      return differs("replicated plan", tail.shared_hash.ToHex(),
                     fmt::format("{} (of rank {})", first->shared_hash.ToHex(), first->rank));
    }
    if (first && (tail.snapshot_step != first->snapshot_step ||
                  tail.snapshot_epoch != first->snapshot_epoch)) {
      return differs("snapshot",
                     fmt::format("(epoch {}, step {})", tail.snapshot_epoch, tail.snapshot_step),
                     fmt::format("(epoch {}, step {}) (of rank {})", first->snapshot_epoch,
                                 first->snapshot_step, first->rank));
    }
    by_rank[tail.rank] = tail;
    encoded[tail.rank] = &bytes;
    if (!first) first = &*by_rank[tail.rank];
  }
  ByteWriter out;
  out.Reserve(kHeadBytes + tails.size() * kPackTailBytes + kSealBytes);
  out.Bytes(kMagic);
  out.U32(kFormatVersion);
  out.U64(0);  // must_understand
  out.U64(0);  // may_ignore
  out.U64(save.term);
  out.U64(save.step);
  out.U32(save.attempt);
  out.U32(manifest.world_size);
  for (size_t rank = 0; rank < tails.size(); ++rank) {
    manifest.tails.push_back(*by_rank[rank]);
    out.Bytes(*encoded[rank]);
  }
  Seal(out);
  manifest.encoded = out.Take();
  manifest.digest = DigestOf(AsBytes(manifest.encoded));
  return manifest;
}

Result<Manifest> ParseManifest(ByteSpan bytes, std::string_view what) {
  GODWIT_RETURN_IF_ERROR(CheckSealed(bytes, kMagic, what));
  ByteReader in(bytes.first(bytes.size() - kSealBytes).subspan(12), what);
  GODWIT_RETURN_IF_ERROR(CheckFeatures(what, in.ReadU64(), 0));
  in.ReadU64();  // may_ignore
  SaveId save;
  save.term = in.ReadU64();
  save.step = in.ReadU64();
  save.attempt = in.ReadU32();
  const uint32_t world_size = in.ReadU32();
  if (world_size == 0 || world_size > kMaxWorldSize ||
      bytes.size() != kHeadBytes + world_size * kPackTailBytes + kSealBytes) {
    return DataLossError(
        fmt::format("{}: world_size {} with {} bytes, allowed are 1 to {} ranks "
                    "with {} bytes each",
                    what, world_size, bytes.size(), kMaxWorldSize, kPackTailBytes));
  }
  std::vector<std::string> tails;
  for (uint32_t i = 0; i < world_size; ++i) {
    tails.emplace_back(AsString(in.ReadBytes(kPackTailBytes)));
  }
  GODWIT_RETURN_IF_ERROR(in.Finish());
  auto manifest = MakeManifest(save, tails);
  if (!manifest.ok()) return manifest.status().Annotate(what);
  // One spelling: the same tails in another order are not what a writer made.
  if (AsString(bytes) != manifest->encoded) {
    return DataLossError(fmt::format("{}: tails are not in the order of ranks", what));
  }
  return manifest;
}

}  // namespace godwit::ckpt
