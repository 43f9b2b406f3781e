#include "cli/job_spec.h"

#include <fmt/format.h>

#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/strings.h"

namespace godwit::cli {
namespace {

using nlohmann::json;

Status OneOf(std::string_view field, std::string_view text, const std::vector<std::string>& allowed,
             std::string* out) {
  for (const std::string& name : allowed) {
    if (name == text) {
      *out = name;
      return OkStatus();
    }
  }
  return InvalidArgumentError(
      fmt::format("{}: got '{}', allowed: {}", field, text, Join(allowed, ", ")));
}

Result<uint32_t> Count(std::string_view field, std::string_view text, uint64_t min, uint64_t max) {
  Result<uint64_t> number = ParseUint64(text);
  if (!number.ok() || *number < min || *number > max) {
    return InvalidArgumentError(
        fmt::format("{}: got '{}', allowed: a whole number from {} to {}", field, text, min, max));
  }
  return static_cast<uint32_t>(*number);
}

constexpr uint64_t kMaxWorkers = 1'000'000;

Status WrongType(std::string_view key, const json& value, std::string_view allowed) {
  std::string got = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (got.size() > 40) got = got.substr(0, 40) + "...";
  return InvalidArgumentError(fmt::format("{}: got {}, allowed: {}", key, got, allowed));
}

Status ReadString(std::string_view key, const json& value, std::string* out) {
  if (!value.is_string()) return WrongType(key, value, "a string");
  *out = value.get<std::string>();
  return OkStatus();
}

Result<uint32_t> ReadCount(std::string_view key, const json& value, uint64_t min, uint64_t max) {
  if (!value.is_number_unsigned()) {
    return WrongType(key, value, fmt::format("a whole number from {} to {}", min, max));
  }
  return Count(key, value.dump(), min, max);
}

using Reader = std::function<Status(const json&, proto::JobSpec*)>;

const std::map<std::string, Reader>& Readers() {
  static const std::map<std::string, Reader> readers = {
      {"name",
       [](const json& v, proto::JobSpec* s) { return ReadString("name", v, s->mutable_name()); }},
      {"quota",
       [](const json& v, proto::JobSpec* s) { return ReadString("quota", v, s->mutable_quota()); }},
      {"dir", [](const json& v,
                 proto::JobSpec* s) { return ReadString("dir", v, s->mutable_directory()); }},
      {"cwd",
       [](const json& v, proto::JobSpec* s) { return ReadString("cwd", v, s->mutable_cwd()); }},
      {"class",
       [](const json& v, proto::JobSpec* s) {
         std::string text;
         GODWIT_RETURN_IF_ERROR(ReadString("class", v, &text));
         return SetJobClass(text, s);
       }},
      {"idle",
       [](const json& v, proto::JobSpec* s) {
         std::string text;
         GODWIT_RETURN_IF_ERROR(ReadString("idle", v, &text));
         return SetIdle(text, s);
       }},
      {"grace",
       [](const json& v, proto::JobSpec* s) {
         std::string text;
         GODWIT_RETURN_IF_ERROR(ReadString("grace", v, &text));
         return SetGrace(text, s);
       }},
      {"priority",
       [](const json& v, proto::JobSpec* s) -> Status {
         GODWIT_ASSIGN_OR_RETURN(const uint32_t n, ReadCount("priority", v, 1, 9));
         return SetPriority(n, s);
       }},
      {"workers",
       [](const json& v, proto::JobSpec* s) -> Status {
         if (v.is_number_unsigned()) return SetWorkers(v.dump(), s);
         if (v.is_string()) return SetWorkers(v.get<std::string>(), s);
         return WrongType("workers", v, "a number, or \"MIN:MAX\"");
       }},
      {"slots_per_worker",
       [](const json& v, proto::JobSpec* s) -> Status {
         GODWIT_ASSIGN_OR_RETURN(const uint32_t n,
                                 ReadCount("slots_per_worker", v, 1, kMaxWorkers));
         s->set_slots_per_worker(n);
         return OkStatus();
       }},
      {"max_restarts",
       [](const json& v, proto::JobSpec* s) -> Status {
         GODWIT_ASSIGN_OR_RETURN(const uint32_t n, ReadCount("max_restarts", v, 0, kMaxWorkers));
         s->set_max_restarts(n);
         return OkStatus();
       }},
      {"max_job_restarts",
       [](const json& v, proto::JobSpec* s) -> Status {
         GODWIT_ASSIGN_OR_RETURN(const uint32_t n,
                                 ReadCount("max_job_restarts", v, 0, kMaxWorkers));
         s->set_max_job_restarts(n);
         return OkStatus();
       }},
      {"auto_restart",
       [](const json& v, proto::JobSpec* s) -> Status {
         if (!v.is_boolean()) return WrongType("auto_restart", v, "true, false");
         s->set_auto_restart(v.get<bool>());
         return OkStatus();
       }},
      {"command",
       [](const json& v, proto::JobSpec* s) -> Status {
         const char* allowed = "a list of strings that is not empty";
         if (!v.is_array() || v.empty()) return WrongType("command", v, allowed);
         s->clear_argv();
         for (const json& word : v) {
           if (!word.is_string()) return WrongType("command", v, allowed);
           s->add_argv(word.get<std::string>());
         }
         return OkStatus();
       }},
      {"env",
       [](const json& v, proto::JobSpec* s) -> Status {
         const char* allowed = "an object of strings";
         if (!v.is_object()) return WrongType("env", v, allowed);
         for (const auto& [name, value] : v.items()) {
           if (!value.is_string()) return WrongType("env." + name, value, "a string");
           GODWIT_RETURN_IF_ERROR(SetEnv(name + "=" + value.get<std::string>(), s));
         }
         return OkStatus();
       }},
  };
  return readers;
}

}  // namespace

Status SetWorkers(std::string_view text, proto::JobSpec* spec) {
  const size_t colon = text.find(':');
  const std::string_view low = text.substr(0, colon);
  const std::string_view high = colon == std::string_view::npos ? low : text.substr(colon + 1);
  const Result<uint32_t> min = Count("workers", low, 1, kMaxWorkers);
  const Result<uint32_t> max = Count("workers", high, 1, kMaxWorkers);
  if (!min.ok() || !max.ok() || *min > *max) {
    return InvalidArgumentError(fmt::format(
        "workers: got '{}', allowed: N or MIN:MAX with 1 <= MIN <= MAX <= {}", text, kMaxWorkers));
  }
  spec->set_min_workers(*min);
  spec->set_max_workers(*max);
  return OkStatus();
}

Status SetEnv(std::string_view text, proto::JobSpec* spec) {
  const size_t equals = text.find('=');
  if (equals == 0 || equals == std::string_view::npos) {
    return InvalidArgumentError(fmt::format("env: got '{}', allowed: NAME=value", text));
  }
  const std::string_view prefix = text.substr(0, equals + 1);
  for (std::string& existing : *spec->mutable_env()) {
    if (existing.starts_with(prefix)) {
      existing = std::string(text);
      return OkStatus();
    }
  }
  spec->add_env(std::string(text));
  return OkStatus();
}

Status SetIdle(std::string_view text, proto::JobSpec* spec) {
  return OneOf("idle", text, {"forbid", "accept", "only"}, spec->mutable_idle());
}

Status SetJobClass(std::string_view text, proto::JobSpec* spec) {
  return OneOf("class", text, {"high", "medium", "low"}, spec->mutable_job_class());
}

Status SetPriority(uint64_t priority, proto::JobSpec* spec) {
  if (priority < 1 || priority > 9) {
    return InvalidArgumentError(
        fmt::format("priority: got {}, allowed: 1 (lowest) to 9", priority));
  }
  spec->set_priority(static_cast<uint32_t>(priority));
  return OkStatus();
}

Status SetGrace(std::string_view text, proto::JobSpec* spec) {
  const Result<Duration> grace = ParseDuration(text);
  if (!grace.ok() || *grace <= Duration(0)) {
    return InvalidArgumentError(
        fmt::format("grace: got '{}', allowed: a duration above 0 such as '30s'", text));
  }
  spec->set_grace_ns(static_cast<uint64_t>(ToNanos(*grace)));
  return OkStatus();
}

Status ReadJobJson(std::string_view text, std::string_view source, proto::JobSpec* spec) {
  json document;
  try {
    document = json::parse(text);
  } catch (const json::exception& error) {
    return InvalidArgumentError(fmt::format("{}: not JSON: {}", source, error.what()));
  }
  if (!document.is_object()) {
    return InvalidArgumentError(
        fmt::format("{}: a job is a JSON object, got {}", source, document.type_name()));
  }
  for (const auto& [key, value] : document.items()) {
    const auto reader = Readers().find(key);
    if (reader == Readers().end()) {
      std::vector<std::string> known;
      for (const auto& [name, unused] : Readers()) known.push_back(name);
      const std::string hint = DidYouMean(key, known);
      return InvalidArgumentError(
          fmt::format("{}: unknown key '{}'{}", source, key,
                      hint.empty() ? "; allowed: " + Join(known, ", ") : hint));
    }
    GODWIT_RETURN_IF_ERROR(reader->second(value, spec).Annotate(source));
  }
  return OkStatus();
}

}  // namespace godwit::cli
