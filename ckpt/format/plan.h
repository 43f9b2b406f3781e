#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/digest.h"
#include "base/status.h"
#include "ckpt/include/godwit/ckpt/state.h"

namespace godwit::ckpt {

// Limits of version 1; a plan beyond them is refused, on both sides.
inline constexpr uint64_t kChunkBytes = 1 << 20;        // of a tensor's chunk, at most
inline constexpr uint64_t kMaxBlobBytes = 64ull << 20;  // a blob is one chunk, whatever its size
inline constexpr uint64_t kMaxPlanBytes = 1ull << 46;   // of all state
inline constexpr uint64_t kMaxPlanEntries = 1 << 20;
inline constexpr uint64_t kMaxNameBytes = 4096;
inline constexpr uint64_t kMaxTensorDims = 64;

// One tensor or blob of the plan.
struct PlanEntry {
  std::string name;
  bool is_blob = false;
  DType dtype = DType::kU8;    // of tensors
  std::vector<int64_t> shape;  // of tensors
  uint64_t bytes = 0;          // of a tensor; of a blob: at most
  Stability stability = Stability::kStable;
  Placement placement = Placement::kReplicated;
  ShardSpec shard;
};

// A piece of a chunk that belongs to one entry.
struct Segment {
  uint32_t entry = 0;
  uint64_t entry_offset = 0;  // bytes
  uint64_t chunk_offset = 0;  // bytes
  uint64_t bytes = 0;
};

// What is staged, digested and encoded as one piece.
struct Chunk {
  uint64_t index = 0;
  uint64_t offset = 0;  // in a snapshot's data, a multiple of 64
  uint64_t bytes = 0;   // exactly; of a blob: at most
  bool is_blob = false;
  DType dtype = DType::kU8;  // of all its tensors; of a blob: kU8
  Stability stability = Stability::kStable;
  Placement placement = Placement::kReplicated;
  uint32_t segments = 0;
  uint32_t run = 0;  // where Plan keeps the rest
};

// The layout of a rank's state: entries, and the chunks that they give. Chunks are a pure function
// of the entries, so only the entries are stored; memory is O(entries), however large the tensors
// that a hostile file claims. Replicated chunks come first and have the same numbers on all ranks.
// Immutable, cheap to copy only by const reference.
class Plan {
 public:
  // INVALID_ARGUMENT naming the entry and the limit.
  static Result<Plan> Make(std::vector<PlanEntry> entries);
  // What Serialize wrote. DATA_LOSS naming the field; FAILED_PRECONDITION for another version.
  static Result<Plan> Parse(ByteSpan bytes, std::string_view what);

  const std::string& serialized() const { return serialized_; }
  // XXH3-128 of serialized().
  const Digest128& hash() const { return hash_; }
  // The same of the replicated entries alone: equal on all ranks of a save.
  const Digest128& shared_hash() const { return shared_hash_; }

  const std::vector<PlanEntry>& entries() const { return entries_; }
  std::optional<uint32_t> Find(std::string_view name) const;

  uint64_t chunks() const { return chunks_; }
  uint64_t replicated_chunks() const { return replicated_chunks_; }
  // REQUIRES: index < chunks().
  Chunk chunk(uint64_t index) const;
  // REQUIRES: i < chunk.segments.
  Segment segment(const Chunk& chunk, uint32_t i) const;
  // "chunk 12 ('model.wte', 'model.wpe' and 3 more)".
  std::string Describe(const Chunk& chunk) const;

  // Bytes of a snapshot's data, paddings included.
  uint64_t data_bytes() const { return data_bytes_; }
  // Of all tensors, without blobs and paddings.
  uint64_t tensor_bytes() const { return tensor_bytes_; }
  // Of volatile tensors: what is copied at the gate, besides blobs.
  uint64_t volatile_bytes() const { return volatile_bytes_; }
  uint64_t max_chunk_bytes() const { return max_chunk_bytes_; }

  // Which rank's pack holds a chunk: replicated ones are dealt round-robin, `own_rank` has the
  // rest. REQUIRES: world_size > 0.
  uint32_t Owner(const Chunk& chunk, uint32_t own_rank, uint32_t world_size) const;
  // Number of chunks in the pack of `rank`.
  uint64_t ShareChunks(uint32_t rank, uint32_t world_size) const;

 private:
  // Consecutive chunks of one tensor, or one chunk of several small ones.
  struct Run {
    uint64_t first_chunk = 0;
    uint64_t chunks = 0;
    uint64_t offset = 0;
    uint64_t bytes = 0;  // of the whole run
    uint32_t first_segment = 0;
    uint32_t segments = 0;
    bool is_blob = false;
    DType dtype = DType::kU8;
    Stability stability = Stability::kStable;
    Placement placement = Placement::kReplicated;
  };
  Plan() = default;
  void LayOut();

  std::vector<PlanEntry> entries_;
  std::vector<Run> runs_;
  std::vector<Segment> segments_;     // a long run has one, which covers the whole tensor
  std::vector<uint32_t> name_order_;  // entries by name
  std::string serialized_;
  Digest128 hash_;
  Digest128 shared_hash_;
  uint64_t chunks_ = 0;
  uint64_t replicated_chunks_ = 0;
  uint64_t data_bytes_ = 0;
  uint64_t tensor_bytes_ = 0;
  uint64_t volatile_bytes_ = 0;
  uint64_t max_chunk_bytes_ = 0;
};

// The plan of tracked state.
Result<Plan> PlanOf(const StateList& state);

}  // namespace godwit::ckpt
