#include "ckpt/engine/restore.h"

#include <fmt/core.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>

#include "ckpt/engine/arena_rep.h"
#include "ckpt/io/chunk_reader.h"
#include "ckpt/lineage/checkpoint_dir.h"

namespace godwit::ckpt {
namespace {

std::string Dims(const std::vector<int64_t>& dims) {
  return fmt::format("[{}]", [&] {
    std::string out;
    for (size_t i = 0; i < dims.size(); ++i) out += (i ? ", " : "") + std::to_string(dims[i]);
    return out;
  }());
}

// What is tracked, by entry of the saved plan.
struct Targets {
  std::vector<const TensorRef*> tensors;  // null: not wanted
  std::vector<const BlobRef*> blobs;
};

// Finds each tracked name of the given placement in `plan`. With `only`, entries of another
// placement are not looked for.
Status Match(const Plan& plan, const StateList& state, std::optional<Placement> only,
             std::string_view what, Targets& targets) {
  targets.tensors.assign(plan.entries().size(), nullptr);
  targets.blobs.assign(plan.entries().size(), nullptr);
  const auto find = [&](const std::string& name, bool is_blob,
                        Placement placement) -> Result<uint32_t> {
    const std::string kind = is_blob ? "blob" : "tensor";
    const auto i = plan.Find(name);
    if (!i) {
      return FailedPreconditionError(
          fmt::format("{}: {} '{}' is tracked, but not in the checkpoint", what, kind, name));
    }
    const PlanEntry& e = plan.entries()[*i];
    if (e.is_blob != is_blob || e.placement != placement) {
      return FailedPreconditionError(
          fmt::format("{}: '{}' is tracked as a {} {}, the checkpoint has a {} {}", what, name,
                      placement == Placement::kReplicated ? "replicated" : "per-rank", kind,
                      e.placement == Placement::kReplicated ? "replicated" : "per-rank",
                      e.is_blob ? "blob" : "tensor"));
    }
    return *i;
  };
  for (const TensorRef& t : state.tensors) {
    if (only && t.placement != *only) continue;
    GODWIT_ASSIGN_OR_RETURN(const uint32_t i, find(t.name, false, t.placement));
    const PlanEntry& e = plan.entries()[i];
    if (e.dtype != t.dtype || e.shape != t.shape) {
      return FailedPreconditionError(
          fmt::format("{}: tensor '{}' is tracked as {} {}, the checkpoint has {} {}", what, t.name,
                      Name(t.dtype), Dims(t.shape), Name(e.dtype), Dims(e.shape)));
    }
    targets.tensors[i] = &t;
  }
  for (const BlobRef& b : state.blobs) {
    if (only && b.placement != *only) continue;
    GODWIT_ASSIGN_OR_RETURN(const uint32_t i, find(b.name, true, b.placement));
    targets.blobs[i] = &b;
  }
  return OkStatus();
}

bool Wanted(const Plan& plan, const Chunk& chunk, const Targets& targets) {
  for (uint32_t i = 0; i < chunk.segments; ++i) {
    const uint32_t entry = plan.segment(chunk, i).entry;
    if (targets.tensors[entry] || targets.blobs[entry]) return true;
  }
  return false;
}

// Gives a chunk's bytes to the tensors that it holds; a blob is put into `blobs`, because blobs are
// loaded when all tensors are there.
void Scatter(const Plan& plan, const Chunk& chunk, std::string_view raw, const Targets& targets,
             std::map<const BlobRef*, std::string>& blobs) {
  for (uint32_t i = 0; i < chunk.segments; ++i) {
    const Segment s = plan.segment(chunk, i);
    if (const TensorRef* t = targets.tensors[s.entry]) {
      void* base = t->data_now ? t->data_now() : t->data;
      std::memcpy(static_cast<char*>(base) + s.entry_offset, raw.data() + s.chunk_offset, s.bytes);
    } else if (const BlobRef* b = targets.blobs[s.entry]) {
      blobs[b] = std::string(raw);
    }
  }
}

Status LoadBlobs(const StateList& state, const std::map<const BlobRef*, std::string>& blobs,
                 std::string_view what) {
  for (const BlobRef& b : state.blobs) {  // in the order of tracking
    auto it = blobs.find(&b);
    if (it == blobs.end()) continue;
    if (Status s = b.load(it->second); !s.ok()) {
      return s.Annotate(fmt::format("{}: blob '{}'", what, b.name));
    }
  }
  return OkStatus();
}

void AddUnexpected(const Plan& plan, const Targets& targets, std::optional<Placement> only,
                   RestoreStats& stats) {
  for (size_t i = 0; i < plan.entries().size(); ++i) {
    if (only && plan.entries()[i].placement != *only) continue;
    if (!targets.tensors[i] && !targets.blobs[i]) {
      stats.unexpected.push_back(plan.entries()[i].name);
    }
  }
}

// The packs of one save, opened as they are needed.
class Packs {
 public:
  Packs(FileSystem& fs, const std::string& dir, const Manifest& manifest)
      : fs_(fs), dir_(dir), manifest_(manifest), reader_(fs, PacksOf(dir)) {}

  Result<PackReader*> Get(uint32_t rank) {
    auto& reader = open_[rank];
    if (!reader) {
      GODWIT_ASSIGN_OR_RETURN(reader, PackReader::Open(fs_, PackPath(dir_, manifest_.save, rank),
                                                       manifest_.tails[rank]));
    }
    return reader.get();
  }
  Status Read(PackReader& pack, uint64_t chunk, std::string& raw) {
    return reader_.Read(pack, chunk, raw);
  }
  uint64_t bytes_read() const {
    uint64_t n = reader_.bytes_read();
    for (const auto& [rank, reader] : open_) n += reader ? reader->bytes_read() : 0;
    return n;
  }

 private:
  FileSystem& fs_;
  const std::string& dir_;
  const Manifest& manifest_;
  std::map<uint32_t, std::unique_ptr<PackReader>> open_;
  ChunkReader reader_;
};

}  // namespace

Result<RestoreStats> RestoreFromStorage(FileSystem& fs, const std::string& directory,
                                        const SaveId& save, uint32_t rank, uint32_t world_size,
                                        const StateList& state) {
  GODWIT_RETURN_IF_ERROR(Validate(state));
  GODWIT_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(fs, directory, save));
  const std::string what = ManifestPath(directory, save);
  Packs packs(fs, directory, manifest);
  RestoreStats stats;
  std::map<const BlobRef*, std::string> blobs;
  std::string raw;

  // Replicated state: the chunks are the same in the plans of all ranks.
  {
    GODWIT_ASSIGN_OR_RETURN(PackReader * first, packs.Get(0));
    const Plan& plan = first->plan();
    Targets targets;
    GODWIT_RETURN_IF_ERROR(Match(plan, state, Placement::kReplicated, what, targets));
    AddUnexpected(plan, targets, Placement::kReplicated, stats);
    for (uint64_t i = 0; i < plan.replicated_chunks(); ++i) {
      const Chunk chunk = plan.chunk(i);
      if (!Wanted(plan, chunk, targets)) continue;
      GODWIT_ASSIGN_OR_RETURN(PackReader * pack,
                              packs.Get(plan.Owner(chunk, 0, manifest.world_size)));
      GODWIT_RETURN_IF_ERROR(packs.Read(*pack, i, raw));
      Scatter(plan, chunk, raw, targets, blobs);
    }
  }
  if (rank < manifest.world_size) {
    GODWIT_ASSIGN_OR_RETURN(PackReader * own, packs.Get(rank));
    const Plan& plan = own->plan();
    Targets targets;
    GODWIT_RETURN_IF_ERROR(Match(plan, state, Placement::kPerRank, what, targets));
    AddUnexpected(plan, targets, Placement::kPerRank, stats);
    for (uint64_t i = plan.replicated_chunks(); i < plan.chunks(); ++i) {
      const Chunk chunk = plan.chunk(i);
      if (!Wanted(plan, chunk, targets)) continue;
      GODWIT_RETURN_IF_ERROR(packs.Read(*own, i, raw));
      Scatter(plan, chunk, raw, targets, blobs);
    }
  } else {
    for (const TensorRef& t : state.tensors) {
      if (t.placement == Placement::kPerRank) stats.missing.push_back(t.name);
    }
  }
  GODWIT_RETURN_IF_ERROR(LoadBlobs(state, blobs, what));
  if (rank >= manifest.world_size) {
    for (const BlobRef& b : state.blobs) {
      if (b.placement != Placement::kPerRank) continue;
      stats.missing.push_back(b.name);
      if (b.derive) b.derive(manifest.tails[0].snapshot_step, rank, world_size);
    }
  }
  stats.tensors = state.tensors.size();
  stats.bytes_read = packs.bytes_read();
  return stats;
}

Result<RestoreStats> RestoreFromMemory(const Arena& arena, uint64_t step, uint32_t rank,
                                       uint32_t world_size, const StateList& state) {
  GODWIT_ASSIGN_OR_RETURN(const Plan tracked, PlanOf(state));
  const Plan& plan = arena.plan();
  const std::string what = fmt::format("snapshot memory of rank {}, step {}", rank, step);
  if (tracked.hash() != plan.hash()) {
    return FailedPreconditionError(fmt::format("{}: it has plan {}, the tracked state gives {}",
                                               what, plan.hash().ToHex(), tracked.hash().ToHex()));
  }
  std::optional<SlotInfo> newest;
  for (const SlotInfo& s : arena.slots()) {
    if (s.state != SlotState::kWhole || s.step != step) continue;
    if (!newest || s.epoch > newest->epoch) newest = s;
  }
  if (!newest) return NotFoundError(fmt::format("{}: no whole snapshot", what));
  const auto pin = Arena::Rep::Pin(arena.rep(), newest->epoch, step);
  if (!pin) return NotFoundError(fmt::format("{}: freed meanwhile", what));
  const SlotInfo info = arena.rep()->Info(pin->slot());
  if (info.rank != rank || info.world_size != world_size) {
    return FailedPreconditionError(fmt::format("{}: it is of rank {} of {}, this is {} of {}", what,
                                               info.rank, info.world_size, rank, world_size));
  }
  GODWIT_ASSIGN_OR_RETURN(const auto table, arena.rep()->CopyTable(info));
  Targets targets;
  GODWIT_RETURN_IF_ERROR(Match(plan, state, std::nullopt, what, targets));
  std::map<const BlobRef*, std::string> blobs;
  RestoreStats stats;
  std::string raw;
  for (uint64_t i = 0; i < plan.chunks(); ++i) {
    const Chunk chunk = plan.chunk(i);
    raw.assign(reinterpret_cast<const char*>(arena.rep()->data(info.index) + chunk.offset),
               table[i].bytes);
    if (const Digest128 digest = DigestOf(AsBytes(raw)); digest != table[i].digest) {
      return DataLossError(fmt::format("{}: {} has digest {}, at staging it was {}", what,
                                       plan.Describe(chunk), digest.ToHex(),
                                       table[i].digest.ToHex()));
    }
    stats.bytes_read += raw.size();
    Scatter(plan, chunk, raw, targets, blobs);
  }
  GODWIT_RETURN_IF_ERROR(LoadBlobs(state, blobs, what));
  stats.tensors = state.tensors.size();
  return stats;
}

Status VerifySave(FileSystem& fs, const std::string& directory, const SaveId& save) {
  GODWIT_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(fs, directory, save));
  return VerifyPacks(fs, directory, manifest);
}

Result<std::string> ReadBlob(FileSystem& fs, const std::string& directory, const SaveId& save,
                             const std::string& name, uint32_t rank) {
  GODWIT_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(fs, directory, save));
  const std::string what = ManifestPath(directory, save);
  if (rank >= manifest.world_size) {
    return NotFoundError(
        fmt::format("{}: no rank {}, it has {} ranks", what, rank, manifest.world_size));
  }
  Packs packs(fs, directory, manifest);
  GODWIT_ASSIGN_OR_RETURN(PackReader * own, packs.Get(rank));
  const Plan& plan = own->plan();
  const auto entry = plan.Find(name);
  if (!entry || !plan.entries()[*entry].is_blob) {
    return NotFoundError(fmt::format("{}: no blob '{}'", what, name));
  }
  for (uint64_t i = 0; i < plan.chunks(); ++i) {
    const Chunk chunk = plan.chunk(i);
    if (!chunk.is_blob || plan.segment(chunk, 0).entry != *entry) continue;
    GODWIT_ASSIGN_OR_RETURN(PackReader * pack,
                            packs.Get(plan.Owner(chunk, rank, manifest.world_size)));
    std::string raw;
    GODWIT_RETURN_IF_ERROR(packs.Read(*pack, i, raw));
    return raw;
  }
  return InternalError(fmt::format("{}: blob '{}' has no chunk", what, name));
}

}  // namespace godwit::ckpt
