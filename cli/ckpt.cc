#include <fmt/format.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/real_file_system.h"
#include "base/strings.h"
#include "ckpt/engine/restore.h"
#include "ckpt/lineage/checkpoint_dir.h"
#include "cli/ckpt_ledger.h"
#include "cli/table.h"
#include "cli/verb.h"

namespace godwit::cli {
namespace {

using nlohmann::ordered_json;

struct Options {
  std::string dir, save, audit;
  bool json = false;
};

// The directory as an absolute path; NOT_FOUND naming it when it isn't a directory of checkpoints.
Result<std::string> OpenDir(const std::string& given) {
  std::string dir = given;
  if (!dir.starts_with('/')) {
    char* here = getcwd(nullptr, 0);
    if (here == nullptr) return ErrnoError(errno, "ckpt: the working directory");
    dir = JoinPath(here, given);
    free(here);
  }
  while (dir.size() > 1 && dir.ends_with('/')) dir.pop_back();
  const Status opened = ckpt::OpenCheckpointDir(RealFileSystem(), dir, /*create=*/false);
  if (opened.code() == StatusCode::kNotFound) {
    return NotFoundError(
        access(dir.c_str(), F_OK) != 0
            ? fmt::format("ckpt: '{}' does not exist", dir)
            : fmt::format("ckpt: '{}' holds no checkpoints: it has no file FORMAT", dir));
  }
  GODWIT_RETURN_IF_ERROR(opened);
  return dir;
}

ordered_json EntryJson(const ckpt::BranchEntry& entry, bool deep) {
  ordered_json object = {{"save", ckpt::ToString(entry.save)},
                         {"term", entry.save.term},
                         {"step", entry.save.step},
                         {"attempt", entry.save.attempt},
                         {"committed", entry.committed},
                         {"in_lineage", entry.in_lineage},
                         {"world_size", entry.world_size},
                         {"bytes", entry.bytes},
                         {"note", entry.note}};
  if (deep) object["intact"] = entry.intact;
  return object;
}

int Ls(const Options& options) {
  const Result<std::string> dir = OpenDir(options.dir);
  if (!dir.ok()) return Fail(dir.status());
  const Result<std::vector<ckpt::BranchEntry>> entries =
      ckpt::ListBranches(RealFileSystem(), *dir, /*deep=*/false);
  if (!entries.ok()) return Fail(entries.status());
  if (options.json) {
    ordered_json list = ordered_json::array();
    for (const ckpt::BranchEntry& entry : *entries) list.push_back(EntryJson(entry, false));
    fmt::print("{}\n", list.dump(2));
    return kExitOk;
  }
  Table table({"SAVE", "STEP", "TERM", "COMMITTED", "LINEAGE", "RANKS", "SIZE", "NOTE"});
  for (const ckpt::BranchEntry& entry : *entries) {
    table.Row({ckpt::ToString(entry.save), fmt::format("{}", entry.save.step),
               fmt::format("{}", entry.save.term), entry.committed ? "yes" : "no",
               entry.in_lineage ? "yes" : "no",
               entry.world_size == 0 ? "-" : fmt::format("{}", entry.world_size),
               HumanBytes(entry.bytes), entry.note.empty() ? "-" : entry.note});
  }
  fmt::print("{}", table.Render());
  return kExitOk;
}

// Every chunk of every committed save. What was never committed can't be damaged: it's shown, and
// counts for nothing.
int Verify(const Options& options) {
  const Result<std::string> dir = OpenDir(options.dir);
  if (!dir.ok()) return Fail(dir.status());
  const Result<std::vector<ckpt::BranchEntry>> entries =
      ckpt::ListBranches(RealFileSystem(), *dir, /*deep=*/true);
  if (!entries.ok()) return Fail(entries.status());
  size_t committed = 0, damaged = 0;
  uint64_t bytes = 0;
  ordered_json list = ordered_json::array();
  for (const ckpt::BranchEntry& entry : *entries) {
    list.push_back(EntryJson(entry, true));
    if (!entry.committed) continue;
    ++committed;
    bytes += entry.bytes;
    if (!entry.intact) ++damaged;
    if (!options.json) {
      fmt::print("{}  {}{}\n", ckpt::ToString(entry.save), entry.intact ? "ok" : "DAMAGED",
                 entry.note.empty() ? "" : ": " + entry.note);
    }
  }
  if (options.json) {
    fmt::print(
        "{}\n",
        ordered_json{
            {"committed", committed}, {"damaged", damaged}, {"bytes", bytes}, {"saves", list}}
            .dump(2));
  }
  if (damaged > 0) {
    return Fail(DataLossError(
        fmt::format("{}: {} of {} committed saves are damaged", *dir, damaged, committed)));
  }
  // A job whose lineage can't be read any more is damage too, even with no save left to check.
  const Result<ckpt::Found> found = ckpt::FindNewest(RealFileSystem(), *dir);
  if (!found.ok()) return Fail(found.status());
  if (!found->damaged_term.empty()) {
    return Fail(DataLossError(fmt::format("{}: {}", *dir, found->damaged_term)));
  }
  if (!options.json) {
    fmt::print("{} committed saves, {}: every chunk's digest is right\n", committed,
               HumanBytes(bytes));
  }
  return kExitOk;
}

// The save that `text` names: an id as `ls` prints it, a step of the lineage, or "" for the newest.
Result<ckpt::BranchEntry> Choose(const std::string& dir, const std::string& text) {
  GODWIT_ASSIGN_OR_RETURN(const std::vector<ckpt::BranchEntry> entries,
                          ckpt::ListBranches(RealFileSystem(), dir, /*deep=*/false));
  if (text.empty()) {
    GODWIT_ASSIGN_OR_RETURN(const ckpt::Found found, ckpt::FindNewest(RealFileSystem(), dir));
    if (!found.newest) return NotFoundError(dir + ": nothing has been committed yet");
    for (const ckpt::BranchEntry& entry : entries) {
      if (entry.save == found.newest->save) return entry;
    }
    return AbortedError(dir + ": changed while it was read; try again");
  }
  const Result<uint64_t> step = ParseUint64(text);
  for (const ckpt::BranchEntry& entry : entries) {
    const bool named = step.ok() ? entry.committed && entry.in_lineage && entry.save.step == *step
                                 : ckpt::ToString(entry.save) == text;
    if (named) return entry;
  }
  return NotFoundError(fmt::format(
      "{}: no save '{}'; allowed: a step of the lineage, or an id ('godwit ckpt ls')", dir, text));
}

int Show(const Options& options) {
  const Result<std::string> dir = OpenDir(options.dir);
  if (!dir.ok()) return Fail(dir.status());
  const Result<ckpt::BranchEntry> entry = Choose(*dir, options.save);
  if (!entry.ok()) return Fail(entry.status());
  const ckpt::SaveId& save = entry->save;
  const Status intact = entry->committed ? ckpt::VerifySave(RealFileSystem(), *dir, save)
                                         : FailedPreconditionError("not committed");
  struct Pack {
    std::string path;
    uint64_t bytes;
  };
  std::vector<Pack> packs;
  for (uint32_t rank = 0; rank < entry->world_size; ++rank) {
    const std::string path = ckpt::PackPath(*dir, save, rank);
    const Result<FileInfo> info = RealFileSystem().Stat(path);
    packs.push_back({path, info.ok() ? info->size : 0});
  }
  const Result<SamplerPlace> ledger = FindSamplerPlace(*dir, save);
  if (options.json) {
    ordered_json object = EntryJson(*entry, false);
    object["intact"] = intact.ok();
    object["damage"] = intact.ok() ? "" : intact.message();
    object["packs"] = ordered_json::array();
    for (const Pack& pack : packs) {
      object["packs"].push_back({{"path", pack.path}, {"bytes", pack.bytes}});
    }
    if (ledger.ok()) {
      object["sampler"] = {{"pass", ledger->pass},
                           {"position", ledger->position},
                           {"dataset_size", ledger->dataset_size}};
    }
    fmt::print("{}\n", object.dump(2));
  } else {
    std::vector<std::pair<std::string, std::string>> fields = {
        {"save", ckpt::ToString(save)},
        {"step", fmt::format("{}", save.step)},
        {"committed", entry->committed ? "yes" : "no"},
        {"in the lineage", entry->in_lineage ? "yes" : "no"},
        {"intact", intact.ok() ? "yes, every chunk" : "NO: " + intact.message()},
        {"ranks", fmt::format("{}", entry->world_size)},
        {"size", HumanBytes(entry->bytes)},
    };
    if (!entry->note.empty()) fields.emplace_back("note", entry->note);
    if (ledger.ok()) {
      fields.emplace_back("sampler", fmt::format("pass {}, {} of {} samples", ledger->pass,
                                                 ledger->position, ledger->dataset_size));
    }
    for (size_t rank = 0; rank < packs.size(); ++rank) {
      fields.emplace_back(fmt::format("pack of rank {}", rank),
                          fmt::format("{} ({})", packs[rank].path, HumanBytes(packs[rank].bytes)));
    }
    fmt::print("{}", RenderFields(fields));
  }
  return !entry->committed || intact.ok() ? kExitOk : kExitError;
}

int Ledger(const Options& options) {
  const Result<std::string> dir = OpenDir(options.dir);
  if (!dir.ok()) return Fail(dir.status());
  const Result<ckpt::BranchEntry> entry = Choose(*dir, options.save);
  if (!entry.ok()) return Fail(entry.status());
  return PrintLedgerCheck(*dir, entry->save, options.audit, options.json);
}

}  // namespace

void AddCkpt(CLI::App& root, Verbs& verbs) {
  CLI::App* ckpt =
      AddVerb(root, "ckpt", "Look into a directory of checkpoints", "ckpt ls runs/gpt");
  ckpt->require_subcommand(0, 1);
  const auto add = [&](const std::string& name, const std::string& what, const std::string& example,
                       bool save, bool audit, int (*run)(const Options&)) {
    auto options = std::make_shared<Options>();
    CLI::App* app = AddVerb(*ckpt, name, what, "ckpt " + example);
    app->add_option("DIR", options->dir, "Directory of checkpoints")->required();
    if (save) {
      app->add_option("--save", options->save,
                      "A save's id, or a step of the lineage (default: the newest)");
    }
    if (audit) {
      app->add_option("--audit", options->audit,
                      "The data set's own log: a file or a directory of audit-*.log")
          ->type_name("PATH");
    }
    AddJson(app, &options->json);
    verbs.push_back({app, false, [options, run](const Command&) { return run(*options); }});
  };
  add("ls", "List the saves, newest first, with branches that are dead", "ls runs/gpt", false,
      false, Ls);
  add("show", "Show one save", "show runs/gpt --save 120", true, false, Show);
  add("verify", "Check every chunk's digest; exit 1 on any damage", "verify runs/gpt", false, false,
      Verify);
  add("ledger", "Check that each sample was used exactly once",
      "ledger runs/gpt --audit runs/gpt-audit", true, true, Ledger);
}

}  // namespace godwit::cli
