#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"

namespace godwit::cli {

// A worker's output file of a scheduled job: <job's run directory>/a<attempt>/<node>/workers/
// e<epoch>-r<rank>.<out|err>.
struct WorkerLog {
  uint32_t attempt = 0;
  uint64_t epoch = 0;
  uint32_t rank = 0;
  bool is_stderr = false;
  std::string node;
  std::string path;
};

struct LogFilter {
  std::optional<uint32_t> attempt;
  std::optional<uint32_t> rank;
  bool out = true;
  bool err = true;
};

// The files that the filter lets through, by attempt, epoch, rank, stdout before stderr. A
// directory that does not exist has none. Other files are passed over.
Result<std::vector<WorkerLog>> FindWorkerLogs(FileSystem& fs, const std::string& run_directory,
                                              const LogFilter& filter);

// "e12-r3.out" into epoch, rank and stream; false for anything else.
bool ParseWorkerLogName(std::string_view name, WorkerLog* log);

// Reads what files gain, as whole lines, file by file. Used from one thread.
class LogReader {
 public:
  // A line that is longer is given in pieces.
  static constexpr size_t kMaxLineBytes = 64 << 10;

  LogReader(FileSystem& fs, std::string run_directory, LogFilter filter)
      : fs_(fs), run_directory_(std::move(run_directory)), filter_(filter) {}

  struct Line {
    const WorkerLog* log;
    std::string_view text;  // without the newline
  };
  // Hands over all whole lines that have come since the last call; with `at_end` also a last one
  // without a newline. A file that vanishes is passed over.
  template <typename F>
  Status Poll(bool at_end, F&& on_line) {
    GODWIT_ASSIGN_OR_RETURN(const std::vector<WorkerLog> logs,
                            FindWorkerLogs(fs_, run_directory_, filter_));
    for (const WorkerLog& log : logs) {
      GODWIT_ASSIGN_OR_RETURN(const std::vector<std::string> lines, ReadNew(log, at_end));
      for (const std::string& line : lines) on_line(Line{&log, line});
    }
    return OkStatus();
  }

 private:
  struct Position {
    uint64_t offset = 0;
    std::string partial;
  };
  Result<std::vector<std::string>> ReadNew(const WorkerLog& log, bool at_end);

  FileSystem& fs_;
  const std::string run_directory_;
  const LogFilter filter_;
  std::map<std::string, Position> positions_;  // by path
};

}  // namespace godwit::cli
