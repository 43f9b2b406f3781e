#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace godwit::master {

// The keys and values with which the workers of one epoch find each other (addresses, ids).
// Bounded; everything is forgotten when the next epoch begins. Pure: no I/O, no clock.
class KvExchange {
 public:
  static constexpr size_t kMaxKeyBytes = 256;
  static constexpr size_t kMaxValueBytes = 48 * 1024;
  static constexpr size_t kMaxKeys = 65536;
  static constexpr size_t kMaxWaiting = 65536;

  // Who asked, to be handed back with the answer.
  struct Asker {
    uint32_t node = 0;
    uint32_t rank = 0;
    uint32_t request = 0;
  };
  struct Answer {
    Asker asker;
    Status status;
    std::string value;
  };

  // Forgets all keys when the epoch is a new one, and answers ABORTED to who still waits.
  std::vector<Answer> BeginEpoch(uint64_t epoch);
  uint64_t epoch() const { return epoch_; }

  // A key is set once: ALREADY_EXISTS after that. Answers the setter and who waited for the key.
  std::vector<Answer> Set(const Asker& asker, const std::string& key, std::string value);
  // Answers at once if the key is set; else later, or with DEADLINE_EXCEEDED by `deadline`.
  std::vector<Answer> Get(const Asker& asker, const std::string& key, MonotonicTime deadline);
  // Answers whose time is up.
  std::vector<Answer> Expire(MonotonicTime now);
  std::optional<MonotonicTime> NextDeadline() const;
  // The node's stream broke: its questions are asked again, or were given up.
  void Forget(uint32_t node);

 private:
  struct Waiting {
    Asker asker;
    std::string key;
    MonotonicTime deadline;
  };
  uint64_t epoch_ = 0;
  std::map<std::string, std::string> values_;
  std::vector<Waiting> waiting_;
};

}  // namespace godwit::master
