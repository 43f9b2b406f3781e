#include "scheduler/config/cluster_config.h"

#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/strings.h"

namespace godwit {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxNodes = 1024;
constexpr uint64_t kMaxSlots = 64;
constexpr uint32_t kMaxQuotaSlots = kMaxNodes * kMaxSlots;
constexpr double kMaxSeconds = 7 * 24 * 3600;

// Reads one object strictly; `where` names it in messages.
class ObjectReader {
 public:
  ObjectReader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  Status CheckKeys(const std::vector<std::string>& known) const {
    if (!object_.is_object()) {
      return InvalidArgumentError(
          fmt::format("{}: got {}, allowed: an object", where_, object_.type_name()));
    }
    for (const auto& [key, value] : object_.items()) {
      bool found = false;
      for (const std::string& name : known) found |= name == key;
      if (!found) {
        return InvalidArgumentError(fmt::format("{}: unknown key '{}'{} (allowed: {})", where_, key,
                                                DidYouMean(key, known), Join(known, ", ")));
      }
    }
    return OkStatus();
  }
  bool Has(const char* key) const { return object_.contains(key); }

  Result<std::string> String(const char* key) const {
    if (!Has(key)) return Missing(key, "a string");
    const Json& value = object_.at(key);
    if (!value.is_string()) return Wrong(key, value, "a string");
    return value.get<std::string>();
  }
  Result<uint32_t> Count(const char* key) const {
    const std::string allowed = fmt::format("a whole number from 0 to {}", kMaxQuotaSlots);
    if (!Has(key)) return Missing(key, allowed);
    const Json& value = object_.at(key);
    if (!value.is_number_unsigned() || value.get<uint64_t>() > kMaxQuotaSlots) {
      return Wrong(key, value, allowed);
    }
    return value.get<uint32_t>();
  }
  Result<bool> Bool(const char* key) const {
    const Json& value = object_.at(key);
    if (!value.is_boolean()) return Wrong(key, value, "true or false");
    return value.get<bool>();
  }
  Result<Duration> Seconds(const char* key) const {
    const Json& value = object_.at(key);
    if (!value.is_number() || !(value.get<double>() > 0) || value.get<double>() > kMaxSeconds) {
      return Wrong(key, value, "seconds above 0, at most 604800");
    }
    return Duration(static_cast<int64_t>(std::llround(value.get<double>() * 1e9)));
  }
  Status Wrong(const char* key, const Json& value, const std::string& allowed) const {
    return InvalidArgumentError(
        fmt::format("{}: {}: got {}, allowed: {}", where_, key,
                    value.dump(-1, ' ', true, Json::error_handler_t::replace), allowed));
  }
  Status Missing(const char* key, const std::string& allowed) const {
    return InvalidArgumentError(
        fmt::format("{}: {} is missing, allowed: {}", where_, key, allowed));
  }

 private:
  const Json& object_;
  const std::string where_;
};

Result<policy::Quota> ParseQuota(const Json& object, const std::string& where) {
  const ObjectReader reader(object, where);
  GODWIT_RETURN_IF_ERROR(reader.CheckKeys({"name", "guaranteed", "max", "lendable", "queue"}));
  policy::Quota quota;
  GODWIT_ASSIGN_OR_RETURN(quota.name, reader.String("name"));
  if (quota.name.empty()) return reader.Missing("name", "a name");
  GODWIT_ASSIGN_OR_RETURN(quota.guaranteed, reader.Count("guaranteed"));
  if (reader.Has("max")) {
    GODWIT_ASSIGN_OR_RETURN(quota.max, reader.Count("max"));
    if (*quota.max < quota.guaranteed) {
      return reader.Wrong("max", object.at("max"),
                          fmt::format("at least guaranteed, which is {}", quota.guaranteed));
    }
  }
  if (reader.Has("lendable")) {
    GODWIT_ASSIGN_OR_RETURN(quota.lendable, reader.Bool("lendable"));
  }
  if (reader.Has("queue")) {
    GODWIT_ASSIGN_OR_RETURN(const std::string queue, reader.String("queue"));
    if (queue == "strict-fifo") {
      quota.queue = policy::QueueStrategy::kStrictFifo;
    } else if (queue != "round-robin") {
      return reader.Wrong("queue", object.at("queue"), "round-robin, strict-fifo");
    }
  }
  return quota;
}

}  // namespace

Result<std::vector<policy::Node>> ParseNodes(std::string_view text) {
  const auto wrong = [&] {
    return InvalidArgumentError(fmt::format(
        "--nodes: got '{}', allowed: <nodes>x<slots of each> such as 3x1, at most {}x{}", text,
        kMaxNodes, kMaxSlots));
  };
  const std::vector<std::string> parts = Split(text, 'x');
  if (parts.size() != 2) return wrong();
  const Result<uint64_t> nodes = ParseUint64(parts[0]);
  const Result<uint64_t> slots = ParseUint64(parts[1]);
  if (!nodes.ok() || !slots.ok() || *nodes < 1 || *nodes > kMaxNodes || *slots < 1 ||
      *slots > kMaxSlots) {
    return wrong();
  }
  std::vector<policy::Node> result;
  for (uint64_t i = 0; i < *nodes; ++i) {
    result.push_back({fmt::format("node-{}", i), static_cast<uint32_t>(*slots)});
  }
  return result;
}

Result<ClusterConfig> ParseClusterConfig(std::string_view json, std::string_view source,
                                         uint32_t capacity) {
  const std::string where(source);
  Json root;
  try {
    root = Json::parse(json);
  } catch (const Json::exception& e) {
    std::string what = e.what();
    for (char& c : what) {
      if (c == '\n') c = ' ';
    }
    return InvalidArgumentError(fmt::format("{}: not JSON: {}", where, what));
  }
  const ObjectReader reader(root, where);
  GODWIT_RETURN_IF_ERROR(
      reader.CheckKeys({"quotas", "notice_s", "max_notice_s", "grow_after_s", "checkpoint_root"}));
  ClusterConfig config;
  if (reader.Has("notice_s")) {
    GODWIT_ASSIGN_OR_RETURN(config.notice, reader.Seconds("notice_s"));
  }
  if (reader.Has("max_notice_s")) {
    GODWIT_ASSIGN_OR_RETURN(config.max_notice, reader.Seconds("max_notice_s"));
  }
  if (config.max_notice < config.notice) {
    if (reader.Has("max_notice_s")) {
      return reader.Wrong("max_notice_s", root.at("max_notice_s"),
                          "at least notice_s, " + HumanDuration(config.notice));
    }
    config.max_notice = config.notice;
  }
  if (reader.Has("grow_after_s")) {
    GODWIT_ASSIGN_OR_RETURN(config.grow_after, reader.Seconds("grow_after_s"));
  }
  if (reader.Has("checkpoint_root")) {
    GODWIT_ASSIGN_OR_RETURN(config.checkpoint_root, reader.String("checkpoint_root"));
    if (config.checkpoint_root.empty() || config.checkpoint_root[0] != '/') {
      return reader.Wrong("checkpoint_root", root.at("checkpoint_root"), "an absolute path");
    }
  }
  if (!reader.Has("quotas") || !root.at("quotas").is_array() || root.at("quotas").empty()) {
    return reader.Missing("quotas", "a list of at least one quota");
  }
  std::set<std::string> names;
  uint64_t guaranteed = 0;
  for (size_t i = 0; i < root.at("quotas").size(); ++i) {
    GODWIT_ASSIGN_OR_RETURN(
        policy::Quota quota,
        ParseQuota(root.at("quotas").at(i), fmt::format("{}: quotas[{}]", where, i)));
    if (!names.insert(quota.name).second) {
      return InvalidArgumentError(
          fmt::format("{}: quotas[{}]: name: '{}' stands there twice", where, i, quota.name));
    }
    guaranteed += quota.guaranteed;
    config.quotas.push_back(std::move(quota));
  }
  if (guaranteed > capacity) {
    return InvalidArgumentError(fmt::format(
        "{}: quotas: they guarantee {} slots in all, allowed: at most the {} of the nodes", where,
        guaranteed, capacity));
  }
  return config;
}

ClusterConfig DefaultClusterConfig(uint32_t capacity) {
  ClusterConfig config;
  config.quotas.push_back({.name = "default", .guaranteed = capacity});
  return config;
}

}  // namespace godwit
