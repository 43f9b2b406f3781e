#include "master/core/kv_exchange.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace godwit::master {
namespace {

Status CheckKey(const std::string& key) {
  if (!key.empty() && key.size() <= KvExchange::kMaxKeyBytes) return OkStatus();
  return InvalidArgumentError(
      fmt::format("key of {} bytes: must have 1 to {}", key.size(), KvExchange::kMaxKeyBytes));
}

}  // namespace

std::vector<KvExchange::Answer> KvExchange::BeginEpoch(uint64_t epoch) {
  std::vector<Answer> answers;
  if (epoch == epoch_) return answers;
  epoch_ = epoch;
  values_.clear();
  for (Waiting& w : waiting_) {
    answers.push_back(
        {w.asker, AbortedError(fmt::format("key '{}': its epoch is over", w.key)), ""});
  }
  waiting_.clear();
  return answers;
}

std::vector<KvExchange::Answer> KvExchange::Set(const Asker& asker, const std::string& key,
                                                std::string value) {
  if (Status s = CheckKey(key); !s.ok()) return {{asker, s, ""}};
  if (value.size() > kMaxValueBytes) {
    return {{asker,
             InvalidArgumentError(fmt::format("key '{}': a value of {} bytes, at most {} are "
                                              "allowed",
                                              key, value.size(), kMaxValueBytes)),
             ""}};
  }
  if (values_.size() >= kMaxKeys) {
    return {{asker,
             ResourceExhaustedError(
                 fmt::format("key '{}': {} keys are set already", key, values_.size())),
             ""}};
  }
  if (!values_.emplace(key, std::move(value)).second) {
    return {{asker, AlreadyExistsError(fmt::format("key '{}' is set already", key)), ""}};
  }
  std::vector<Answer> answers = {{asker, OkStatus(), ""}};
  std::erase_if(waiting_, [&](const Waiting& w) {
    if (w.key != key) return false;
    answers.push_back({w.asker, OkStatus(), values_.at(key)});
    return true;
  });
  return answers;
}

std::vector<KvExchange::Answer> KvExchange::Get(const Asker& asker, const std::string& key,
                                                MonotonicTime deadline) {
  if (Status s = CheckKey(key); !s.ok()) return {{asker, s, ""}};
  if (const auto it = values_.find(key); it != values_.end()) {
    return {{asker, OkStatus(), it->second}};
  }
  if (waiting_.size() >= kMaxWaiting) {
    return {{asker,
             ResourceExhaustedError(
                 fmt::format("key '{}': {} questions wait already", key, waiting_.size())),
             ""}};
  }
  waiting_.push_back({asker, key, deadline});
  return {};
}

std::vector<KvExchange::Answer> KvExchange::Expire(MonotonicTime now) {
  std::vector<Answer> answers;
  std::erase_if(waiting_, [&](const Waiting& w) {
    if (w.deadline > now) return false;
    answers.push_back(
        {w.asker, DeadlineExceededError(fmt::format("key '{}' was not set in time", w.key)), ""});
    return true;
  });
  return answers;
}

std::optional<MonotonicTime> KvExchange::NextDeadline() const {
  std::optional<MonotonicTime> next;
  for (const Waiting& w : waiting_) {
    if (!next || w.deadline < *next) next = w.deadline;
  }
  return next;
}

void KvExchange::Forget(uint32_t node) {
  std::erase_if(waiting_, [&](const Waiting& w) { return w.asker.node == node; });
}

}  // namespace godwit::master
