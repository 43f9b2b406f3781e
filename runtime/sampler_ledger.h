#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"

namespace godwit {

// Which samples a run has used, and the arithmetic of dealing them: pure, without the runtime, so
// that a checkpoint's ledger can be checked offline.
//
// Data is dealt pass by pass. In a pass every sample 0 .. dataset_size-1 is dealt once, in an order
// that depends on (seed, pass) alone. Step by step the next `global_batch` of that order are used;
// the last batch of a pass is short when the size does not divide. A batch is split over the ranks
// into consecutive shares, so its samples and their order don't depend on the world size.

inline constexpr uint64_t kMaxDatasetSize = 1ull << 56;

// The order of one pass: a keyed permutation of [0, size) (a Feistel network walked until it stays
// inside), computed per position, so that no table is kept.
class PassOrder {
 public:
  // REQUIRES: 0 < size <= kMaxDatasetSize.
  PassOrder(uint64_t size, uint64_t seed, uint64_t pass, bool shuffle);
  // REQUIRES: position < size.
  uint64_t operator[](uint64_t position) const;

 private:
  static constexpr int kRounds = 6;
  uint64_t size_;
  bool shuffle_;
  int half_bits_ = 1;
  uint64_t half_mask_ = 1;
  uint64_t keys_[kRounds];
};

// Where dealing stands.
struct DealCursor {
  uint64_t pass = 0;
  uint64_t position = 0;  // < dataset_size
  friend bool operator==(const DealCursor&, const DealCursor&) = default;
};
// Samples in the batch at the cursor.
uint64_t BatchSize(const DealCursor& at, uint64_t dataset_size, uint64_t global_batch);
// The cursor after `steps` batches. REQUIRES: sizes > 0.
DealCursor Advance(const DealCursor& at, uint64_t steps, uint64_t dataset_size,
                   uint64_t global_batch);
// The rank's share [first, last) of a batch of `count` samples.
struct Share {
  uint64_t first = 0;
  uint64_t last = 0;
};
Share ShareOf(uint64_t count, uint32_t rank, uint32_t world_size);

// Consecutive steps of one membership.
struct DealtRun {
  uint64_t first_step = 0;
  uint64_t last_step = 0;  // inclusive
  DealCursor start;        // of first_step
  uint64_t global_batch = 0;
  uint64_t term = 0;
  uint64_t epoch = 0;
  uint32_t world_size = 0;
};

struct SamplerLedger {
  uint64_t dataset_size = 0;
  uint64_t seed = 0;
  bool shuffle = true;
  DealCursor cursor;  // of the next batch
  std::vector<DealtRun> runs;
};

// One more completed step, dealt from the cursor, which moves on. A step that goes on with the last
// run's membership lengthens it. Runs are at most kMaxLedgerRuns: beyond that the oldest are
// merged, and then carry the newer membership's numbers.
inline constexpr size_t kMaxLedgerRuns = 8192;
void AppendStep(SamplerLedger* ledger, uint64_t step, uint64_t global_batch, uint64_t term,
                uint64_t epoch, uint32_t world_size);

// The ledger's bytes, the content of the checkpoint's blob "sampler".
std::string SerializeLedger(const SamplerLedger& ledger);
inline constexpr uint64_t kMaxLedgerBytes = 128 + kMaxLedgerRuns * 64;
// DATA_LOSS naming the field.
Result<SamplerLedger> ParseLedger(std::string_view bytes);

// Each sample of each finished pass was used exactly once, none of the unfinished one twice: the
// runs follow each other without gap or overlap in steps and in positions, from the beginning to
// the cursor. DATA_LOSS naming the step.
struct LedgerSummary {
  uint64_t steps = 0;
  uint64_t samples = 0;
  uint64_t passes = 0;  // finished
  uint64_t memberships = 0;
};
Result<LedgerSummary> CheckLedger(const SamplerLedger& ledger);

// Checks a ledger against what the data set's own log says was read: lines
//   term epoch step rank pass id id id ...
// in any order and any number of files. Lines of steps that are not in the lineage (done again
// after a failure) are counted and otherwise ignored.
class AuditCheck {
 public:
  struct Report {
    uint64_t steps = 0;  // of the lineage, each with all its ranks
    uint64_t samples = 0;
    uint64_t passes = 0;        // finished
    uint64_t redone_lines = 0;  // outside the lineage
  };

  // `ledger` passed CheckLedger.
  explicit AuditCheck(const SamplerLedger& ledger);

  // INVALID_ARGUMENT for a malformed line; DATA_LOSS when a sample is used twice or is not the one
  // that the ledger says. `where` goes before the message ("audit-1-1-0.log:7").
  Status AddLine(std::string_view line, std::string_view where);
  // DATA_LOSS naming the first step that lacks a rank, or the first sample of a finished pass that
  // was never read.
  Result<Report> Finish();

 private:
  SamplerLedger ledger_;
  Report report_;
  std::unordered_set<uint64_t> seen_;           // step * kRanks + rank
  std::map<uint64_t, std::vector<bool>> used_;  // by pass, then sample
};

// The same over a file, or over all files audit-*.log of a directory. A last line without a
// newline (its writer was killed) is ignored.
Result<AuditCheck::Report> CheckAudit(FileSystem& fs, const SamplerLedger& ledger,
                                      const std::string& path);

}  // namespace godwit
