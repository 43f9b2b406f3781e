#include "runtime/sampler_ledger.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/random.h"

namespace godwit {
namespace {

constexpr std::string_view kMagic = "GWLEDG0\n";
constexpr uint64_t kMaxRanks = 1ull << 20;
constexpr uint64_t kMaxStep = 1ull << 43;  // step * kMaxRanks + rank fits 64 bits
constexpr uint64_t kMaxPass = 1ull << 56;
constexpr uint64_t kMaxAuditedSamples = 1ull << 33;
constexpr uint64_t kMaxAuditFileBytes = 4ull << 30;

uint64_t CeilDiv(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }

uint64_t Steps(const DealtRun& run) { return run.last_step - run.first_step + 1; }

// Samples of `steps` batches from `at` on.
uint64_t Samples(const DealCursor& at, uint64_t steps, uint64_t size, uint64_t batch) {
  const DealCursor end = Advance(at, steps, size, batch);
  return (end.pass - at.pass) * size + end.position - at.position;
}

std::string StepText(uint64_t step) { return "step " + std::to_string(step); }

std::string CursorText(const DealCursor& c) {
  return "pass " + std::to_string(c.pass) + " position " + std::to_string(c.position);
}

}  // namespace

PassOrder::PassOrder(uint64_t size, uint64_t seed, uint64_t pass, bool shuffle)
    : size_(size), shuffle_(shuffle) {
  GODWIT_CHECK(size > 0 && size <= kMaxDatasetSize);
  // Two equal halves that together cover the size: at most four times it, so that a walk takes
  // four rounds on average in the worst case.
  const int bits = std::max(2, static_cast<int>(std::bit_width(size - 1)));
  half_bits_ = (bits + 1) / 2;
  half_mask_ = (uint64_t{1} << half_bits_) - 1;
  uint64_t key = Mix64(seed ^ Mix64(pass + 0x632be59bd9b4e019ull));
  for (uint64_t& k : keys_) k = key = Mix64(key + 0x9e3779b97f4a7c15ull);
}

uint64_t PassOrder::operator[](uint64_t position) const {
  if (!shuffle_) return position;
  uint64_t x = position;
  do {
    uint64_t left = x >> half_bits_;
    uint64_t right = x & half_mask_;
    for (const uint64_t key : keys_) {
      const uint64_t mixed = left ^ (Mix64(right ^ key) & half_mask_);
      left = right;
      right = mixed;
    }
    x = (left << half_bits_) | right;
  } while (x >= size_);
  return x;
}

uint64_t BatchSize(const DealCursor& at, uint64_t dataset_size, uint64_t global_batch) {
  return std::min(global_batch, dataset_size - at.position);
}

DealCursor Advance(const DealCursor& at, uint64_t steps, uint64_t dataset_size,
                   uint64_t global_batch) {
  const uint64_t left_in_pass = CeilDiv(dataset_size - at.position, global_batch);
  if (steps < left_in_pass) return {at.pass, at.position + steps * global_batch};
  const uint64_t rest = steps - left_in_pass;
  const uint64_t per_pass = CeilDiv(dataset_size, global_batch);
  return {at.pass + 1 + rest / per_pass, (rest % per_pass) * global_batch};
}

Share ShareOf(uint64_t count, uint32_t rank, uint32_t world_size) {
  // The first count % world_size ranks have one more.
  const uint64_t each = count / world_size;
  const uint64_t more = count % world_size;
  const uint64_t first = rank * each + std::min<uint64_t>(rank, more);
  return {first, first + each + (rank < more ? 1 : 0)};
}

void AppendStep(SamplerLedger* ledger, uint64_t step, uint64_t global_batch, uint64_t term,
                uint64_t epoch, uint32_t world_size) {
  std::vector<DealtRun>& runs = ledger->runs;
  if (!runs.empty() && runs.back().last_step + 1 == step &&
      runs.back().global_batch == global_batch && runs.back().term == term &&
      runs.back().epoch == epoch && runs.back().world_size == world_size) {
    runs.back().last_step = step;
  } else {
    if (runs.size() >= kMaxLedgerRuns) {
      // Two neighbours with one batch size are one run of steps, whoever did them.
      for (size_t i = 0; i + 1 < runs.size(); ++i) {
        if (runs[i].global_batch != runs[i + 1].global_batch) continue;
        runs[i + 1].first_step = runs[i].first_step;
        runs[i + 1].start = runs[i].start;
        runs.erase(runs.begin() + static_cast<ptrdiff_t>(i));
        break;
      }
    }
    runs.push_back({.first_step = step,
                    .last_step = step,
                    .start = ledger->cursor,
                    .global_batch = global_batch,
                    .term = term,
                    .epoch = epoch,
                    .world_size = world_size});
  }
  ledger->cursor = Advance(ledger->cursor, 1, ledger->dataset_size, global_batch);
}

std::string SerializeLedger(const SamplerLedger& ledger) {
  ByteWriter w;
  w.Bytes(kMagic);
  w.U64(ledger.dataset_size);
  w.U64(ledger.seed);
  w.U8(ledger.shuffle ? 1 : 0);
  w.U64(ledger.cursor.pass);
  w.U64(ledger.cursor.position);
  w.U32(static_cast<uint32_t>(ledger.runs.size()));
  for (const DealtRun& run : ledger.runs) {
    w.U64(run.first_step);
    w.U64(run.last_step);
    w.U64(run.start.pass);
    w.U64(run.start.position);
    w.U64(run.global_batch);
    w.U64(run.term);
    w.U64(run.epoch);
    w.U32(run.world_size);
  }
  return w.Take();
}

Result<SamplerLedger> ParseLedger(std::string_view bytes) {
  ByteReader r(AsBytes(bytes), "sampler ledger");
  if (AsString(r.ReadBytes(kMagic.size())) != kMagic) {
    return DataLossError("sampler ledger: no ledger of version 0 begins like this");
  }
  const auto field = [&](const char* name, uint64_t value, uint64_t low, uint64_t high) {
    if (r.ok() && (value < low || value > high)) {
      r.Fail(std::string(name) + " " + std::to_string(value) + ", allowed: " + std::to_string(low) +
             " to " + std::to_string(high));
    }
    return value;
  };
  SamplerLedger ledger;
  ledger.dataset_size = field("dataset_size", r.ReadU64(), 1, kMaxDatasetSize);
  ledger.seed = r.ReadU64();
  ledger.shuffle = field("shuffle", r.ReadU8(), 0, 1) == 1;
  const auto position = [&](const char* name) {
    return field(name, r.ReadU64(), 0, ledger.dataset_size - 1);
  };
  ledger.cursor.pass = field("pass", r.ReadU64(), 0, kMaxPass);
  ledger.cursor.position = position("position");
  const uint64_t count = field("runs", r.ReadU32(), 0, kMaxLedgerRuns);
  for (uint64_t i = 0; i < count && r.ok(); ++i) {
    DealtRun run;
    run.first_step = field("first_step", r.ReadU64(), 0, kMaxStep);
    run.last_step = field("last_step", r.ReadU64(), run.first_step, kMaxStep);
    run.start.pass = field("start pass", r.ReadU64(), 0, kMaxPass);
    run.start.position = position("start position");
    run.global_batch = field("global_batch", r.ReadU64(), 1, kMaxDatasetSize);
    run.term = r.ReadU64();
    run.epoch = r.ReadU64();
    run.world_size = static_cast<uint32_t>(field("world_size", r.ReadU32(), 1, kMaxRanks));
    ledger.runs.push_back(run);
  }
  GODWIT_RETURN_IF_ERROR(r.Finish());
  return ledger;
}

Result<LedgerSummary> CheckLedger(const SamplerLedger& ledger) {
  LedgerSummary summary;
  DealCursor at;
  for (const DealtRun& run : ledger.runs) {
    const uint64_t next = summary.steps;
    if (run.first_step != next) {
      return DataLossError("sampler ledger: " + StepText(run.first_step) + " follows where " +
                           StepText(next) + " was due");
    }
    if (run.start != at) {
      return DataLossError("sampler ledger: " + StepText(run.first_step) + " was dealt from " +
                           CursorText(run.start) + ", due was " + CursorText(at) +
                           ": samples were skipped or used twice");
    }
    summary.samples += Samples(at, Steps(run), ledger.dataset_size, run.global_batch);
    at = Advance(at, Steps(run), ledger.dataset_size, run.global_batch);
    summary.steps += Steps(run);
    ++summary.memberships;
  }
  if (at != ledger.cursor) {
    return DataLossError("sampler ledger: the runs end at " + CursorText(at) +
                         ", the cursor is at " + CursorText(ledger.cursor));
  }
  summary.passes = at.pass;
  return summary;
}

AuditCheck::AuditCheck(const SamplerLedger& ledger) : ledger_(ledger) {}

Status AuditCheck::AddLine(std::string_view line, std::string_view where) {
  const auto fail = [&](StatusCode code, const std::string& what) {
    return Status(code, std::string(where) + ": " + what);
  };
  const char* at = line.data();
  const char* const end = line.data() + line.size();
  const auto next = [&](uint64_t* value) {
    while (at != end && *at == ' ') ++at;
    const auto [rest, error] = std::from_chars(at, end, *value);
    if (error != std::errc() || (rest != end && *rest != ' ')) return false;
    at = rest;
    return true;
  };
  uint64_t term, epoch, step, rank, pass;
  if (!next(&term) || !next(&epoch) || !next(&step) || !next(&rank) || !next(&pass)) {
    return fail(StatusCode::kInvalidArgument, "not a line 'term epoch step rank pass id ...'");
  }
  const auto run = std::partition_point(ledger_.runs.begin(), ledger_.runs.end(),
                                        [&](const DealtRun& r) { return r.last_step < step; });
  if (run == ledger_.runs.end() || run->term != term || run->epoch != epoch) {
    ++report_.redone_lines;
    return OkStatus();
  }
  const std::string who = StepText(step) + " rank " + std::to_string(rank);
  if (rank >= run->world_size) {
    return fail(StatusCode::kDataLoss,
                who + ", but the world size was " + std::to_string(run->world_size));
  }
  if (!seen_.insert(step * kMaxRanks + rank).second) {
    return fail(StatusCode::kDataLoss, who + " was read twice in one membership");
  }
  const DealCursor cursor =
      Advance(run->start, step - run->first_step, ledger_.dataset_size, run->global_batch);
  if (pass != cursor.pass) {
    return fail(StatusCode::kDataLoss, who + " read from pass " + std::to_string(pass) +
                                           ", the ledger says " + std::to_string(cursor.pass));
  }
  const uint64_t count = BatchSize(cursor, ledger_.dataset_size, run->global_batch);
  const Share share = ShareOf(count, static_cast<uint32_t>(rank), run->world_size);
  const PassOrder order(ledger_.dataset_size, ledger_.seed, pass, ledger_.shuffle);
  if (ledger_.dataset_size > kMaxAuditedSamples) {
    return fail(StatusCode::kResourceExhausted,
                "a data set of " + std::to_string(ledger_.dataset_size) +
                    " samples, audits keep a bit for each: allowed are " +
                    std::to_string(kMaxAuditedSamples));
  }
  std::vector<bool>& used = used_[pass];
  used.resize(ledger_.dataset_size);
  for (uint64_t i = share.first; i < share.last; ++i) {
    uint64_t id;
    if (!next(&id)) return fail(StatusCode::kDataLoss, who + " read fewer samples than its share");
    if (id >= ledger_.dataset_size) {
      return fail(StatusCode::kDataLoss, who + " read sample " + std::to_string(id) + " of " +
                                             std::to_string(ledger_.dataset_size));
    }
    if (used[id]) {
      return fail(StatusCode::kDataLoss, who + " read sample " + std::to_string(id) +
                                             ", which was used before in pass " +
                                             std::to_string(pass));
    }
    used[id] = true;
    const uint64_t due = order[cursor.position + i];
    if (id != due) {
      return fail(StatusCode::kDataLoss, who + " read sample " + std::to_string(id) +
                                             ", the ledger says " + std::to_string(due));
    }
    ++report_.samples;
  }
  while (at != end && *at == ' ') ++at;
  if (at != end) return fail(StatusCode::kDataLoss, who + " read more samples than its share");
  return OkStatus();
}

Result<AuditCheck::Report> AuditCheck::Finish() {
  for (const DealtRun& run : ledger_.runs) {
    for (uint64_t step = run.first_step; step <= run.last_step; ++step) {
      const DealCursor cursor =
          Advance(run.start, step - run.first_step, ledger_.dataset_size, run.global_batch);
      const uint64_t count = BatchSize(cursor, ledger_.dataset_size, run.global_batch);
      for (uint32_t rank = 0; rank < run.world_size; ++rank) {
        const Share share = ShareOf(count, rank, run.world_size);
        if (share.first == share.last || seen_.contains(step * kMaxRanks + rank)) continue;
        return DataLossError("audit: " + StepText(step) + " rank " + std::to_string(rank) +
                             " (term " + std::to_string(run.term) + ", epoch " +
                             std::to_string(run.epoch) + ") is in the ledger, but was never read");
      }
      ++report_.steps;
    }
  }
  for (uint64_t pass = 0; pass < ledger_.cursor.pass; ++pass) {
    const std::vector<bool>& used = used_[pass];
    const auto unused = std::find(used.begin(), used.end(), false);
    if (used.empty() || unused != used.end()) {
      return DataLossError("audit: sample " + std::to_string(unused - used.begin()) +
                           " was never used in pass " + std::to_string(pass));
    }
    ++report_.passes;
  }
  return report_;
}

Result<AuditCheck::Report> CheckAudit(FileSystem& fs, const SamplerLedger& ledger,
                                      const std::string& path) {
  GODWIT_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
  std::vector<std::string> files;
  if (info.is_dir) {
    GODWIT_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, fs.List(path));
    for (const DirEntry& entry : entries) {
      if (!entry.is_dir && entry.name.starts_with("audit-") && entry.name.ends_with(".log")) {
        files.push_back(JoinPath(path, entry.name));
      }
    }
    if (files.empty()) return NotFoundError(path + ": no files audit-*.log");
  } else {
    files.push_back(path);
  }
  AuditCheck check(ledger);
  for (const std::string& file : files) {
    GODWIT_ASSIGN_OR_RETURN(const std::string text, fs.ReadFile(file, kMaxAuditFileBytes));
    size_t line = 0;
    for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos;
         begin = end + 1) {
      GODWIT_RETURN_IF_ERROR(check.AddLine(std::string_view(text).substr(begin, end - begin),
                                           file + ":" + std::to_string(++line)));
    }
  }
  return check.Finish();
}

}  // namespace godwit
