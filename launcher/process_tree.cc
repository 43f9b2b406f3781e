#include "launcher/process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "base/strings.h"
#include "base/unique_fd.h"

namespace godwit {

namespace {

// /proc files say their size only by their end.
Result<std::string> ReadProcFile(const std::string& path, size_t max_bytes) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return ErrnoError(errno, "open(" + path + ")");
  std::string text;
  char buffer[4096];
  while (text.size() < max_bytes) {
    const ssize_t n = read(fd.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoError(errno, "read(" + path + ")");
    if (n == 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  return text;
}

Result<std::vector<pid_t>> NumericEntries(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(path.c_str()), closedir);
  if (dir == nullptr) return ErrnoError(errno, "opendir(" + path + ")");
  std::vector<pid_t> numbers;
  while (const dirent* entry = readdir(dir.get())) {
    const Result<uint64_t> number = ParseUint64(entry->d_name);
    if (number.ok()) numbers.push_back(static_cast<pid_t>(*number));
  }
  return numbers;
}

// Fields 3 and on of /proc/<pid>/stat (field 2, the name, may hold anything).
Result<std::vector<std::string>> StatOf(pid_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  GODWIT_ASSIGN_OR_RETURN(const std::string stat, ReadProcFile(path, 4096));
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos || name_end + 4 >= stat.size()) {
    return DataLossError(path + ": got '" + stat + "', allowed: proc(5)'s fields");
  }
  return Split(std::string_view(stat).substr(name_end + 2), ' ');
}

// 0 when the process has ended.
pid_t ParentOf(pid_t pid) {
  const Result<std::vector<std::string>> fields = StatOf(pid);
  if (!fields.ok() || fields->size() < 2) return 0;
  const Result<uint64_t> parent = ParseUint64((*fields)[1]);
  return parent.ok() ? static_cast<pid_t>(*parent) : 0;
}

}  // namespace

Result<std::vector<pid_t>> ChildPids() {
  // Each thread's children; the file needs CONFIG_PROC_CHILDREN.
  std::vector<pid_t> children;
  GODWIT_ASSIGN_OR_RETURN(const std::vector<pid_t> threads, NumericEntries("/proc/self/task"));
  bool listed = true;
  for (const pid_t thread : threads) {
    const std::string path = "/proc/self/task/" + std::to_string(thread) + "/children";
    const Result<std::string> text = ReadProcFile(path, 1 << 20);
    if (!text.ok()) {
      listed = false;
      break;
    }
    for (const std::string& word : Split(Trim(*text), ' ')) {
      const Result<uint64_t> pid = ParseUint64(word);
      if (pid.ok()) children.push_back(static_cast<pid_t>(*pid));
    }
  }
  if (listed) return children;
  children.clear();
  GODWIT_ASSIGN_OR_RETURN(const std::vector<pid_t> all, NumericEntries("/proc"));
  for (const pid_t pid : all) {
    if (ParentOf(pid) == getpid()) children.push_back(pid);
  }
  return children;
}

std::optional<std::string> EnvironmentOf(pid_t pid, std::string_view name) {
  constexpr size_t kMaxEnvironment = 4 << 20;
  const Result<std::string> text =
      ReadProcFile("/proc/" + std::to_string(pid) + "/environ", kMaxEnvironment);
  if (!text.ok()) return std::nullopt;
  for (const std::string& entry : Split(*text, '\0')) {
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=') {
      return entry.substr(name.size() + 1);
    }
  }
  return std::nullopt;
}

Result<std::vector<pid_t>> ProcessesWithEnvironment(std::string_view name, std::string_view value) {
  GODWIT_ASSIGN_OR_RETURN(std::vector<pid_t> pids, NumericEntries("/proc"));
  std::erase_if(pids, [&](pid_t pid) { return EnvironmentOf(pid, name) != value; });
  return pids;
}

Result<ProcessActivity> ActivityOf(pid_t pid) {
  GODWIT_ASSIGN_OR_RETURN(const std::vector<std::string> fields, StatOf(pid));
  constexpr size_t kState = 0, kUserTime = 11, kSystemTime = 12;  // fields 3, 14 and 15
  ProcessActivity activity;
  if (fields.size() <= kSystemTime || fields[kState].size() != 1) {
    return DataLossError("process " + std::to_string(pid) + ": its stat has " +
                         std::to_string(fields.size()) + " fields");
  }
  activity.state = fields[kState][0];
  for (const size_t field : {kUserTime, kSystemTime}) {
    GODWIT_ASSIGN_OR_RETURN(const uint64_t ticks, ParseUint64(fields[field]));
    activity.cpu_ticks += ticks;
  }
  return activity;
}

Result<pid_t> PeekEndedChild() {
  siginfo_t info{};
  while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0) {
    if (errno == EINTR) continue;
    if (errno == ECHILD) return pid_t{0};
    return ErrnoError(errno, "waitid(any child)");
  }
  return info.si_pid;
}

void ReapUnknownChild(pid_t pid) {
  while (waitpid(pid, nullptr, WNOHANG) < 0 && errno == EINTR) {
  }
}

}  // namespace godwit
