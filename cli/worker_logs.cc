#include "cli/worker_logs.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "base/strings.h"

namespace godwit::cli {
namespace {

// The number after a one-letter prefix ("a3", "e12").
bool ParseTagged(std::string_view text, char tag, uint64_t max, uint64_t* out) {
  if (text.empty() || text.front() != tag) return false;
  const Result<uint64_t> number = ParseUint64(text.substr(1));
  if (!number.ok() || *number > max) return false;
  *out = *number;
  return true;
}

// What is in `dir`; nothing when it does not exist (yet, or any more).
Result<std::vector<DirEntry>> ListIfThere(FileSystem& fs, const std::string& dir) {
  Result<std::vector<DirEntry>> entries = fs.List(dir);
  if (!entries.ok() && entries.status().code() == StatusCode::kNotFound) {
    return std::vector<DirEntry>();
  }
  return entries;
}

}  // namespace

bool ParseWorkerLogName(std::string_view name, WorkerLog* log) {
  const size_t dot = name.rfind('.');
  const size_t dash = name.find('-');
  if (dot == std::string_view::npos || dash == std::string_view::npos || dash > dot) return false;
  const std::string_view stream = name.substr(dot + 1);
  if (stream != "out" && stream != "err") return false;
  uint64_t epoch = 0, rank = 0;
  if (!ParseTagged(name.substr(0, dash), 'e', std::numeric_limits<uint64_t>::max(), &epoch) ||
      !ParseTagged(name.substr(dash + 1, dot - dash - 1), 'r', std::numeric_limits<uint32_t>::max(),
                   &rank)) {
    return false;
  }
  log->epoch = epoch;
  log->rank = static_cast<uint32_t>(rank);
  log->is_stderr = stream == "err";
  return true;
}

Result<std::vector<WorkerLog>> FindWorkerLogs(FileSystem& fs, const std::string& run_directory,
                                              const LogFilter& filter) {
  std::vector<WorkerLog> logs;
  GODWIT_ASSIGN_OR_RETURN(const std::vector<DirEntry> attempts, ListIfThere(fs, run_directory));
  for (const DirEntry& attempt : attempts) {
    uint64_t number = 0;
    if (!attempt.is_dir ||
        !ParseTagged(attempt.name, 'a', std::numeric_limits<uint32_t>::max(), &number) ||
        (filter.attempt && *filter.attempt != number)) {
      continue;
    }
    const std::string attempt_dir = JoinPath(run_directory, attempt.name);
    GODWIT_ASSIGN_OR_RETURN(const std::vector<DirEntry> nodes, ListIfThere(fs, attempt_dir));
    for (const DirEntry& node : nodes) {
      if (!node.is_dir) continue;
      const std::string workers_dir = JoinPath(JoinPath(attempt_dir, node.name), "workers");
      GODWIT_ASSIGN_OR_RETURN(const std::vector<DirEntry> files, ListIfThere(fs, workers_dir));
      for (const DirEntry& file : files) {
        WorkerLog log;
        if (file.is_dir || !ParseWorkerLogName(file.name, &log)) continue;
        if (filter.rank && *filter.rank != log.rank) continue;
        if (log.is_stderr ? !filter.err : !filter.out) continue;
        log.attempt = static_cast<uint32_t>(number);
        log.node = node.name;
        log.path = JoinPath(workers_dir, file.name);
        logs.push_back(std::move(log));
      }
    }
  }
  std::sort(logs.begin(), logs.end(), [](const WorkerLog& a, const WorkerLog& b) {
    return std::tie(a.attempt, a.epoch, a.rank, a.is_stderr, a.path) <
           std::tie(b.attempt, b.epoch, b.rank, b.is_stderr, b.path);
  });
  return logs;
}

Result<std::vector<std::string>> LogReader::ReadNew(const WorkerLog& log, bool at_end) {
  std::vector<std::string> lines;
  Result<std::unique_ptr<RandomAccessFile>> file = fs_.OpenRead(log.path);
  if (!file.ok()) {
    if (file.status().code() == StatusCode::kNotFound) return lines;
    return file.status();
  }
  Position& position = positions_[log.path];
  std::string buffer(kMaxLineBytes, '\0');
  while (position.offset < (*file)->size()) {
    GODWIT_ASSIGN_OR_RETURN(
        const size_t count,
        (*file)->ReadAt(position.offset, std::as_writable_bytes(std::span(buffer))));
    if (count == 0) break;
    position.offset += count;
    std::string_view rest(buffer.data(), count);
    for (size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      lines.push_back(position.partial + std::string(rest.substr(0, end)));
      position.partial.clear();
      rest.remove_prefix(end + 1);
    }
    position.partial += rest;
    if (position.partial.size() >= kMaxLineBytes) {
      lines.push_back(std::move(position.partial));
      position.partial.clear();
    }
  }
  if (at_end && !position.partial.empty()) {
    lines.push_back(std::move(position.partial));
    position.partial.clear();
  }
  return lines;
}

}  // namespace godwit::cli
