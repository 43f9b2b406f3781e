#include "scheduler/api/job_spec.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/strings.h"

namespace godwit {
namespace {

constexpr uint32_t kMaxWorkers = 65536;
constexpr uint32_t kMaxSlotsPerWorker = 64;
constexpr size_t kMaxSpecBytes = 1 << 20;
constexpr uint32_t kDefaultMaxRestarts = 3;

Status Wrong(const char* field, const std::string& got, const std::string& allowed) {
  return InvalidArgumentError(fmt::format("job: {}: got {}, allowed: {}", field, got, allowed));
}

Status OneOf(const char* field, const std::string& got, const std::vector<std::string>& allowed) {
  if (std::find(allowed.begin(), allowed.end(), got) != allowed.end()) return OkStatus();
  return Wrong(field, fmt::format("'{}'{}", got, DidYouMean(got, allowed)), Join(allowed, ", "));
}

}  // namespace

Status CompleteSpec(const ClusterConfig& config, proto::JobSpec* spec) {
  if (spec->ByteSizeLong() > kMaxSpecBytes) {
    return Wrong("size", HumanBytes(spec->ByteSizeLong()), "at most " + HumanBytes(kMaxSpecBytes));
  }
  if (spec->argv().empty() || spec->argv(0).empty()) {
    return Wrong("argv", "nothing", "a program and its arguments");
  }
  for (const std::string& word : spec->argv()) {
    if (word.find('\0') != std::string::npos) return Wrong("argv", "a NUL byte", "text");
  }
  if (spec->name().empty()) spec->set_name(BaseName(spec->argv(0)));

  std::vector<std::string> quotas;
  for (const policy::Quota& quota : config.quotas) quotas.push_back(quota.name);
  if (spec->quota().empty()) {
    if (quotas.size() > 1) return Wrong("quota", "none", Join(quotas, ", "));
    spec->set_quota(quotas.front());
  }
  GODWIT_RETURN_IF_ERROR(OneOf("quota", spec->quota(), quotas));

  if (spec->priority() > 9) {
    return Wrong("priority", std::to_string(spec->priority()), "1 to 9");
  }
  static constexpr const char* kClassOfPriority[] = {"low", "medium", "high"};
  if (spec->job_class().empty()) {
    spec->set_job_class(spec->priority() == 0 ? "medium"
                                              : kClassOfPriority[(spec->priority() - 1) / 3]);
  }
  GODWIT_RETURN_IF_ERROR(OneOf("class", spec->job_class(), {"high", "medium", "low"}));
  if (spec->priority() == 0) {
    spec->set_priority(spec->job_class() == "high" ? 8 : spec->job_class() == "low" ? 2 : 5);
  } else if (spec->job_class() != kClassOfPriority[(spec->priority() - 1) / 3]) {
    return Wrong("priority", fmt::format("{} with class {}", spec->priority(), spec->job_class()),
                 "1-3 for low, 4-6 for medium, 7-9 for high, or one of the two only");
  }
  if (spec->idle().empty()) spec->set_idle("forbid");
  GODWIT_RETURN_IF_ERROR(OneOf("idle", spec->idle(), {"forbid", "accept", "only"}));

  if (spec->min_workers() == 0) spec->set_min_workers(1);
  if (spec->max_workers() == 0) spec->set_max_workers(spec->min_workers());
  if (spec->max_workers() < spec->min_workers() || spec->max_workers() > kMaxWorkers) {
    return Wrong("workers", fmt::format("{} to {}", spec->min_workers(), spec->max_workers()),
                 fmt::format("at least 1, the least first, at most {}", kMaxWorkers));
  }
  if (spec->slots_per_worker() == 0) spec->set_slots_per_worker(1);
  if (spec->slots_per_worker() > kMaxSlotsPerWorker) {
    return Wrong("slots_per_worker", std::to_string(spec->slots_per_worker()),
                 fmt::format("1 to {}", kMaxSlotsPerWorker));
  }
  if (spec->grace_ns() > static_cast<uint64_t>(config.max_notice.count())) {
    return Wrong("grace",
                 HumanDuration(Duration(
                     static_cast<int64_t>(std::min<uint64_t>(spec->grace_ns(), INT64_MAX)))),
                 "at most max_notice_s, " + HumanDuration(config.max_notice));
  }
  for (const std::string& variable : spec->env()) {
    const size_t equals = variable.find('=');
    if (equals == 0 || equals == std::string::npos || variable.find('\0') != std::string::npos) {
      return Wrong("env", "'" + variable + "'", "NAME=value");
    }
  }
  for (const auto& [field, path] :
       {std::pair{"cwd", &spec->cwd()}, std::pair{"directory", &spec->directory()}}) {
    if (!path->empty() && path->front() != '/') {
      return Wrong(field, "'" + *path + "'", "an absolute path, or nothing");
    }
  }
  if (!spec->has_max_restarts()) spec->set_max_restarts(kDefaultMaxRestarts);
  if (!spec->has_auto_restart()) spec->set_auto_restart(true);
  return OkStatus();
}

}  // namespace godwit
