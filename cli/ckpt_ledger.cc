#include "cli/ckpt_ledger.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "base/real_file_system.h"
#include "ckpt/engine/restore.h"
#include "cli/table.h"
#include "cli/verb.h"
#include "runtime/sampler_ledger.h"

namespace godwit::cli {
namespace {

using nlohmann::ordered_json;

// The blob's name is the one that the program tracked its sampler under.
constexpr const char* kSamplerBlob = "sampler";

Result<SamplerLedger> ReadLedger(const std::string& dir, const ckpt::SaveId& save) {
  Result<std::string> blob = ckpt::ReadBlob(RealFileSystem(), dir, save, kSamplerBlob, /*rank=*/0);
  if (!blob.ok() && blob.status().code() == StatusCode::kNotFound) {
    return NotFoundError(
        fmt::format("{}: save {} holds no sampler: the program has to track one as \"{}\"", dir,
                    ckpt::ToString(save), kSamplerBlob));
  }
  if (!blob.ok()) return blob.status();
  Result<SamplerLedger> ledger = ParseLedger(*blob);
  if (!ledger.ok()) return ledger.status().Annotate(dir + ": save " + ckpt::ToString(save));
  return ledger;
}

std::string RunText(const DealtRun& run) {
  return fmt::format(
      "  steps {}-{}: pass {} from sample {}, {} a step, {} ranks (term {}, epoch {})",
      run.first_step, run.last_step, run.start.pass, run.start.position, run.global_batch,
      run.world_size, run.term, run.epoch);
}

}  // namespace

Result<SamplerPlace> FindSamplerPlace(const std::string& dir, const ckpt::SaveId& save) {
  GODWIT_ASSIGN_OR_RETURN(const SamplerLedger ledger, ReadLedger(dir, save));
  return SamplerPlace{ledger.cursor.pass, ledger.cursor.position, ledger.dataset_size};
}

int PrintLedgerCheck(const std::string& dir, const ckpt::SaveId& save, const std::string& audit,
                     bool json) {
  const Result<SamplerLedger> ledger = ReadLedger(dir, save);
  if (!ledger.ok()) return Fail(ledger.status());
  const Result<LedgerSummary> summary = CheckLedger(*ledger);
  if (!summary.ok()) return Fail(summary.status().Annotate(dir));
  std::optional<AuditCheck::Report> report;
  if (!audit.empty()) {
    Result<AuditCheck::Report> checked = CheckAudit(RealFileSystem(), *ledger, audit);
    if (!checked.ok()) return Fail(checked.status());
    report = *checked;
  }
  if (json) {
    ordered_json object = {
        {"save", ckpt::ToString(save)},        {"steps", summary->steps},
        {"samples", summary->samples},         {"passes", summary->passes},
        {"memberships", summary->memberships}, {"dataset_size", ledger->dataset_size},
        {"position", ledger->cursor.position}};
    if (report) {
      object["audit"] = {{"steps", report->steps},
                         {"samples", report->samples},
                         {"passes", report->passes},
                         {"lines_outside_lineage", report->redone_lines}};
    }
    object["runs"] = ordered_json::array();
    for (const DealtRun& run : ledger->runs) {
      object["runs"].push_back({{"first_step", run.first_step},
                                {"last_step", run.last_step},
                                {"pass", run.start.pass},
                                {"position", run.start.position},
                                {"global_batch", run.global_batch},
                                {"term", run.term},
                                {"epoch", run.epoch},
                                {"world_size", run.world_size}});
    }
    fmt::print("{}\n", object.dump(2));
    return kExitOk;
  }
  fmt::print("save {}: {} steps, {} samples, {} whole passes over {} samples, {} memberships\n",
             ckpt::ToString(save), summary->steps, summary->samples, summary->passes,
             ledger->dataset_size, summary->memberships);
  for (const DealtRun& run : ledger->runs) fmt::print("{}\n", RunText(run));
  if (report) {
    fmt::print(
        "audit: {} samples of {} steps were read, each as the ledger says; {} lines outside "
        "the lineage\n",
        report->samples, report->steps, report->redone_lines);
  }
  fmt::print("no sample was used twice or skipped\n");
  return kExitOk;
}

}  // namespace godwit::cli
