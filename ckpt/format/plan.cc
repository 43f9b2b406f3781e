#include "ckpt/format/plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/check.h"
#include "ckpt/format/version.h"

namespace godwit::ckpt {
namespace {

constexpr std::string_view kMagic("GWPLAN\0\n", 8);

// Tensors up to this size share chunks; a larger one begins its own.
constexpr uint64_t kCoalesceBytes = 256 * 1024;
constexpr uint64_t kAlign = 64;  // a cache line

constexpr uint64_t AlignUp(uint64_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

void WriteEntry(const PlanEntry& e, ByteWriter& out) {
  out.String(e.name);
  out.U8(e.is_blob ? 1 : 0);
  out.U8(static_cast<uint8_t>(e.dtype));
  out.U8(static_cast<uint8_t>(e.stability));
  out.U8(static_cast<uint8_t>(e.placement));
  out.U64(e.bytes);
  for (const auto* list : {&e.shape, &e.shard.global_shape, &e.shard.offsets}) {
    out.U32(static_cast<uint32_t>(list->size()));
    for (int64_t v : *list) out.I64(v);
  }
}

std::vector<int64_t> ReadDims(ByteReader& in, std::string_view field) {
  std::vector<int64_t> dims;
  const uint32_t n = in.ReadU32();
  if (n > kMaxTensorDims) {
    in.Fail(fmt::format("{}: got {} dimensions, allowed are {}", field, n, kMaxTensorDims));
    return dims;
  }
  for (uint32_t i = 0; i < n && in.ok(); ++i) dims.push_back(in.ReadI64());
  return dims;
}

Status CheckDims(std::string_view name, std::string_view field, const std::vector<int64_t>& dims) {
  if (dims.size() > kMaxTensorDims) {
    return InvalidArgumentError(fmt::format("'{}': {} has {} dimensions, allowed are {}", name,
                                            field, dims.size(), kMaxTensorDims));
  }
  for (int64_t d : dims) {
    if (d < 0) {
      return InvalidArgumentError(
          fmt::format("'{}': {} has {}, allowed are numbers from 0 on", name, field, d));
    }
  }
  return OkStatus();
}

Status CheckEntry(const PlanEntry& e) {
  if (e.name.empty() || e.name.size() > kMaxNameBytes) {
    return InvalidArgumentError(fmt::format("'{}': a name of {} bytes, allowed are 1 to {}",
                                            e.name.substr(0, 64), e.name.size(), kMaxNameBytes));
  }
  if (e.stability != Stability::kStable && e.stability != Stability::kVolatile) {
    return InvalidArgumentError(
        fmt::format("'{}': stability {}, allowed are 1 (stable) and 2 (volatile)", e.name,
                    static_cast<int>(e.stability)));
  }
  if (e.placement != Placement::kReplicated && e.placement != Placement::kPerRank) {
    return InvalidArgumentError(
        fmt::format("'{}': placement {}, allowed are 1 (replicated) and 2 (per rank)", e.name,
                    static_cast<int>(e.placement)));
  }
  if (e.is_blob) {
    if (e.bytes > kMaxBlobBytes) {
      return InvalidArgumentError(
          fmt::format("blob '{}': up to {} bytes, allowed are {}", e.name, e.bytes, kMaxBlobBytes));
    }
    if (e.stability != Stability::kVolatile || !e.shape.empty() || !e.shard.offsets.empty() ||
        !e.shard.global_shape.empty()) {
      return InvalidArgumentError(
          fmt::format("blob '{}': is volatile and has neither shape nor shard", e.name));
    }
    return OkStatus();
  }
  const size_t item = ByteSize(e.dtype);
  if (item == 0) {
    return InvalidArgumentError(fmt::format("tensor '{}': dtype {}, allowed are 1 to 10", e.name,
                                            static_cast<int>(e.dtype)));
  }
  GODWIT_RETURN_IF_ERROR(CheckDims(e.name, "shape", e.shape));
  GODWIT_RETURN_IF_ERROR(CheckDims(e.name, "shard.global_shape", e.shard.global_shape));
  GODWIT_RETURN_IF_ERROR(CheckDims(e.name, "shard.offsets", e.shard.offsets));
  uint64_t bytes = item;
  bool empty = false;
  bool overflow = false;
  for (int64_t d : e.shape) {
    if (d == 0) empty = true;
    if (!overflow) overflow = __builtin_mul_overflow(bytes, static_cast<uint64_t>(d), &bytes);
  }
  if (empty) {
    bytes = 0;
  } else if (overflow || bytes > kMaxPlanBytes) {
    return InvalidArgumentError(
        fmt::format("tensor '{}': its shape gives more than {} bytes", e.name, kMaxPlanBytes));
  }
  if (bytes != e.bytes) {
    return InvalidArgumentError(fmt::format("tensor '{}': bytes is {}, its shape and dtype give {}",
                                            e.name, e.bytes, bytes));
  }
  const auto& shard = e.shard;
  if (shard.global_shape.empty() && shard.offsets.empty()) return OkStatus();
  if (shard.global_shape.size() != e.shape.size() || shard.offsets.size() != e.shape.size()) {
    return InvalidArgumentError(fmt::format(
        "tensor '{}': {} dimensions, but {} in shard.global_shape and {} in shard.offsets", e.name,
        e.shape.size(), shard.global_shape.size(), shard.offsets.size()));
  }
  for (size_t d = 0; d < e.shape.size(); ++d) {
    int64_t end = 0;
    if (__builtin_add_overflow(shard.offsets[d], e.shape[d], &end) || end > shard.global_shape[d]) {
      return InvalidArgumentError(fmt::format(
          "tensor '{}': dimension {} of its shard starts at {} with {}, the global tensor has {}",
          e.name, d, shard.offsets[d], e.shape[d], shard.global_shape[d]));
    }
  }
  return OkStatus();
}

}  // namespace

Result<Plan> Plan::Make(std::vector<PlanEntry> entries) {
  if (entries.size() > kMaxPlanEntries) {
    return InvalidArgumentError(
        fmt::format("plan: {} entries, allowed are {}", entries.size(), kMaxPlanEntries));
  }
  Plan plan;
  uint64_t total = 0;
  for (const PlanEntry& e : entries) {
    GODWIT_RETURN_IF_ERROR(CheckEntry(e));
    total += e.bytes;  // each is at most kMaxPlanBytes, so no overflow before the check
    if (total > kMaxPlanBytes) {
      return InvalidArgumentError(
          fmt::format("plan: more than {} bytes up to '{}'", kMaxPlanBytes, e.name));
    }
    if (e.is_blob) continue;
    plan.tensor_bytes_ += e.bytes;
    if (e.stability == Stability::kVolatile) plan.volatile_bytes_ += e.bytes;
  }
  plan.entries_ = std::move(entries);
  plan.name_order_.resize(plan.entries_.size());
  std::iota(plan.name_order_.begin(), plan.name_order_.end(), 0u);
  std::sort(plan.name_order_.begin(), plan.name_order_.end(),
            [&](uint32_t a, uint32_t b) { return plan.entries_[a].name < plan.entries_[b].name; });
  for (size_t i = 1; i < plan.name_order_.size(); ++i) {
    const std::string& name = plan.entries_[plan.name_order_[i]].name;
    if (name == plan.entries_[plan.name_order_[i - 1]].name) {
      return InvalidArgumentError(fmt::format("'{}': the name is there twice", name));
    }
  }
  plan.LayOut();

  ByteWriter out;
  ByteWriter shared;
  out.Bytes(kMagic);
  out.U32(kFormatVersion);
  out.U64(0);  // must_understand
  out.U64(0);  // may_ignore
  out.U32(static_cast<uint32_t>(kChunkBytes));
  out.U32(static_cast<uint32_t>(kCoalesceBytes));
  out.U32(static_cast<uint32_t>(plan.entries_.size()));
  for (const PlanEntry& e : plan.entries_) {
    WriteEntry(e, out);
    if (e.placement == Placement::kReplicated) WriteEntry(e, shared);
  }
  plan.serialized_ = out.Take();
  plan.hash_ = DigestOf(AsBytes(plan.serialized_));
  plan.shared_hash_ = DigestOf(shared.bytes());
  return plan;
}

Result<Plan> Plan::Parse(ByteSpan bytes, std::string_view what) {
  ByteReader in(bytes, what);
  if (AsString(in.ReadBytes(8)) != kMagic) in.Fail("magic: not a plan");
  const uint32_t version = in.ReadU32();
  if (!in.ok()) return in.status();
  GODWIT_RETURN_IF_ERROR(CheckVersion(what, version));
  GODWIT_RETURN_IF_ERROR(CheckFeatures(what, in.ReadU64(), 0));
  in.ReadU64();  // may_ignore
  if (const uint32_t v = in.ReadU32(); v != kChunkBytes) {
    in.Fail(fmt::format("chunk_bytes: got {}, allowed is {}", v, kChunkBytes));
  }
  if (const uint32_t v = in.ReadU32(); v != kCoalesceBytes) {
    in.Fail(fmt::format("coalesce_bytes: got {}, allowed is {}", v, kCoalesceBytes));
  }
  const uint32_t count = in.ReadU32();
  constexpr uint64_t kLeastEntryBytes = 4 + 4 + 8 + 3 * 4;
  if (count > kMaxPlanEntries || count > in.remaining() / kLeastEntryBytes) {
    in.Fail(fmt::format("entries: got {}, which {} bytes can't hold", count, in.remaining()));
  }
  std::vector<PlanEntry> entries;
  for (uint32_t i = 0; i < count && in.ok(); ++i) {
    PlanEntry e;
    e.name = in.ReadString(kMaxNameBytes);
    const uint8_t kind = in.ReadU8();
    if (kind > 1) in.Fail(fmt::format("kind: got {}, allowed are 0 and 1", kind));
    e.is_blob = kind == 1;
    e.dtype = static_cast<DType>(in.ReadU8());
    e.stability = static_cast<Stability>(in.ReadU8());
    e.placement = static_cast<Placement>(in.ReadU8());
    e.bytes = in.ReadU64();
    e.shape = ReadDims(in, "shape");
    e.shard.global_shape = ReadDims(in, "shard.global_shape");
    e.shard.offsets = ReadDims(in, "shard.offsets");
    entries.push_back(std::move(e));
  }
  GODWIT_RETURN_IF_ERROR(in.Finish());
  auto plan = Make(std::move(entries));
  if (!plan.ok()) return DataLossError(fmt::format("{}: {}", what, plan.status().message()));
  // As it was written, with whatever a later build put there that may be ignored.
  plan->serialized_ = AsString(bytes);
  plan->hash_ = DigestOf(bytes);
  return plan;
}

void Plan::LayOut() {
  std::vector<std::vector<Segment>> members;  // of each run
  for (Placement placement : {Placement::kReplicated, Placement::kPerRank}) {
    for (Stability stability : {Stability::kStable, Stability::kVolatile}) {
      // Large ones first, so that the small ones between them share chunks.
      for (bool small : {false, true}) {
        // By dtype, the run that takes more small tensors: a chunk's elements are all alike, which
        // is what byte planes need.
        std::map<DType, size_t> open;
        for (uint32_t i = 0; i < entries_.size(); ++i) {
          const PlanEntry& e = entries_[i];
          if (e.placement != placement || e.stability != stability || e.is_blob || e.bytes == 0 ||
              (e.bytes <= kCoalesceBytes) != small) {
            continue;
          }
          if (auto it = open.find(e.dtype);
              it != open.end() && runs_[it->second].bytes + e.bytes <= kChunkBytes) {
            Run& run = runs_[it->second];
            members[it->second].push_back({i, 0, run.bytes, e.bytes});
            run.bytes += e.bytes;
            continue;
          }
          Run run;
          run.chunks = (e.bytes + kChunkBytes - 1) / kChunkBytes;
          run.bytes = e.bytes;
          run.dtype = e.dtype;
          run.stability = stability;
          run.placement = placement;
          if (small) open[e.dtype] = runs_.size();
          runs_.push_back(run);
          members.push_back({{i, 0, 0, e.bytes}});
        }
      }
    }
    for (uint32_t i = 0; i < entries_.size(); ++i) {
      const PlanEntry& e = entries_[i];
      if (!e.is_blob || e.placement != placement) continue;
      Run run;
      run.chunks = 1;
      run.bytes = e.bytes;
      run.is_blob = true;
      run.stability = Stability::kVolatile;
      run.placement = placement;
      runs_.push_back(run);
      members.push_back({{i, 0, 0, e.bytes}});
    }
  }
  for (size_t r = 0; r < runs_.size(); ++r) {
    Run& run = runs_[r];
    run.first_segment = static_cast<uint32_t>(segments_.size());
    run.segments = static_cast<uint32_t>(members[r].size());
    segments_.insert(segments_.end(), members[r].begin(), members[r].end());
    run.first_chunk = chunks_;
    run.offset = data_bytes_;
    chunks_ += run.chunks;
    data_bytes_ = AlignUp(data_bytes_ + run.bytes);
    if (run.placement == Placement::kReplicated) replicated_chunks_ = chunks_;
    max_chunk_bytes_ =
        std::max(max_chunk_bytes_, run.is_blob ? run.bytes : std::min(run.bytes, kChunkBytes));
  }
}

std::optional<uint32_t> Plan::Find(std::string_view name) const {
  auto it = std::lower_bound(name_order_.begin(), name_order_.end(), name,
                             [&](uint32_t i, std::string_view n) { return entries_[i].name < n; });
  if (it == name_order_.end() || entries_[*it].name != name) return std::nullopt;
  return *it;
}

Chunk Plan::chunk(uint64_t index) const {
  GODWIT_CHECK(index < chunks_);
  auto it = std::upper_bound(runs_.begin(), runs_.end(), index,
                             [](uint64_t i, const Run& r) { return i < r.first_chunk; });
  const Run& run = *--it;
  const uint64_t start = (index - run.first_chunk) * kChunkBytes;
  Chunk chunk;
  chunk.index = index;
  chunk.offset = run.offset + start;
  chunk.bytes = run.is_blob ? run.bytes : std::min(kChunkBytes, run.bytes - start);
  chunk.is_blob = run.is_blob;
  chunk.dtype = run.dtype;
  chunk.stability = run.stability;
  chunk.placement = run.placement;
  chunk.segments = run.segments;
  chunk.run = static_cast<uint32_t>(it - runs_.begin());
  return chunk;
}

Segment Plan::segment(const Chunk& chunk, uint32_t i) const {
  const Run& run = runs_[chunk.run];
  GODWIT_CHECK(i < run.segments);
  Segment segment = segments_[run.first_segment + i];
  if (run.chunks > 1) {
    segment.entry_offset = (chunk.index - run.first_chunk) * kChunkBytes;
    segment.bytes = chunk.bytes;
  }
  return segment;
}

std::string Plan::Describe(const Chunk& chunk) const {
  constexpr uint32_t kShown = 3;
  std::string out = fmt::format("chunk {} (", chunk.index);
  for (uint32_t i = 0; i < std::min(chunk.segments, kShown); ++i) {
    const PlanEntry& e = entries_[segment(chunk, i).entry];
    out += fmt::format("{}{} '{}'", i ? ", " : "", e.is_blob ? "blob" : "tensor", e.name);
  }
  if (chunk.segments > kShown) out += fmt::format(" and {} more", chunk.segments - kShown);
  return out + ")";
}

uint32_t Plan::Owner(const Chunk& chunk, uint32_t own_rank, uint32_t world_size) const {
  if (chunk.placement == Placement::kPerRank) return own_rank;
  return static_cast<uint32_t>(chunk.index % world_size);
}

uint64_t Plan::ShareChunks(uint32_t rank, uint32_t world_size) const {
  uint64_t n = chunks_ - replicated_chunks_;
  if (replicated_chunks_ > rank) n += (replicated_chunks_ - rank - 1) / world_size + 1;
  return n;
}

Result<Plan> PlanOf(const StateList& state) {
  GODWIT_RETURN_IF_ERROR(state.error);
  std::vector<PlanEntry> entries;
  entries.reserve(state.tensors.size() + state.blobs.size());
  for (const TensorRef& t : state.tensors) {
    if (t.data == nullptr && t.bytes > 0) {
      return InvalidArgumentError(
          fmt::format("tensor '{}': data is null, with {} bytes", t.name, t.bytes));
    }
    entries.push_back({.name = t.name,
                       .is_blob = false,
                       .dtype = t.dtype,
                       .shape = t.shape,
                       .bytes = t.bytes,
                       .stability = t.stability,
                       .placement = t.placement,
                       .shard = t.shard});
  }
  for (const BlobRef& b : state.blobs) {
    if (!b.save || !b.load) {
      return InvalidArgumentError(fmt::format("blob '{}': save and load must be set", b.name));
    }
    entries.push_back({.name = b.name,
                       .is_blob = true,
                       .bytes = b.max_bytes,
                       .stability = Stability::kVolatile,
                       .placement = b.placement});
  }
  return Plan::Make(std::move(entries));
}

}  // namespace godwit::ckpt
