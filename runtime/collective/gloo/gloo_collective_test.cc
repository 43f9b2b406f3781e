#include "runtime/collective/gloo/gloo_collective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <vector>

#include "base/mutex.h"
#include "base/testing/matchers.h"

namespace godwit {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::IsOk;
using testing::StatusIs;

// A key-value exchange inside the process.
class Keys {
 public:
  KeyExchange exchange() {
    KeyExchange e;
    e.set = [this](std::string_view key, std::string_view value) {
      MutexLock lock(mutex_);
      values_.emplace(key, value);
      changed_.NotifyAll();
      return OkStatus();
    };
    e.get = [this](std::string_view key, Duration timeout) -> Result<std::string> {
      const MonotonicTime deadline = MonotonicClock::now() + timeout;
      MutexLock lock(mutex_);
      for (;;) {
        const auto it = values_.find(std::string(key));
        if (it != values_.end()) return it->second;
        if (!changed_.WaitUntil(mutex_, deadline)) {
          return DeadlineExceededError("key '" + std::string(key) + "' was never set");
        }
      }
    };
    return e;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, std::string> values_;
};

// Runs `body` as each rank of a world.
void World(uint32_t world_size, const std::function<void(uint32_t rank, Collective&)>& body) {
  Keys keys;
  const KeyExchange exchange = keys.exchange();
  std::vector<std::future<void>> ranks;
  for (uint32_t rank = 0; rank < world_size; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      auto collective = OpenGlooCollective(
          {.rank = rank, .world_size = world_size, .host = "127.0.0.1"}, exchange);
      ASSERT_THAT(collective, IsOk());
      body(rank, **collective);
      // Whoever is first to go must not break the others' last operation.
      ASSERT_THAT((*collective)->Barrier(), IsOk());
    }));
  }
  for (auto& rank : ranks) rank.get();
}

TEST(GlooCollectiveTest, SumsAreTheSameBitsOnAllRanks) {
  std::vector<std::vector<float>> results(3);
  World(3, [&](uint32_t rank, Collective& collective) {
    std::vector<float> values(10'001);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = 0.1f * static_cast<float>(i + 1) * static_cast<float>(rank + 1);
    }
    ASSERT_THAT(collective.AllReduceSum(values), IsOk());
    results[rank] = values;
  });
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
  for (size_t i = 0; i < results[0].size(); ++i) {
    ASSERT_NEAR(results[0][i], 0.6 * static_cast<double>(i + 1), 1e-3 * static_cast<double>(i + 1));
  }
}

TEST(GlooCollectiveTest, BroadcastGivesTheRootsBytes) {
  World(2, [&](uint32_t rank, Collective& collective) {
    std::vector<std::byte> bytes(1000, std::byte(rank + 1));
    ASSERT_THAT(collective.Broadcast(bytes, 1), IsOk());
    EXPECT_EQ(bytes, std::vector<std::byte>(1000, std::byte{2}));
  });
}

TEST(GlooCollectiveTest, NothingToReduceIsFine) {
  World(2, [&](uint32_t, Collective& collective) {
    EXPECT_THAT(collective.AllReduceSum({}), IsOk());
  });
}

TEST(GlooCollectiveTest, APeerThatNeverComesIsAnErrorInBoundedTime) {
  Keys keys;
  const KeyExchange exchange = keys.exchange();
  const auto collective = OpenGlooCollective(
      {.rank = 0, .world_size = 2, .host = "127.0.0.1", .connect_timeout = milliseconds(200)},
      exchange);
  EXPECT_FALSE(collective.ok());
}

TEST(GlooCollectiveTest, APeerThatIsGoneIsAnErrorForTheOthers) {
  Keys keys;
  const KeyExchange exchange = keys.exchange();
  const auto open = [&](uint32_t rank) {
    return OpenGlooCollective(
        {.rank = rank, .world_size = 2, .host = "127.0.0.1", .timeout = seconds(30)}, exchange);
  };
  std::promise<void> connected;
  auto other = std::async(std::launch::async, [&] {
    const auto collective = open(1);
    ASSERT_THAT(collective, IsOk());
    connected.get_future().wait();
  });
  auto collective = open(0);
  connected.set_value();
  ASSERT_THAT(collective, IsOk());
  other.get();
  std::vector<float> values(100, 1.0f);
  EXPECT_THAT((*collective)->AllReduceSum(values), StatusIs(StatusCode::kUnavailable));
}

TEST(GlooCollectiveTest, AnAddressOfAnotherHostIsAnError) {
  Keys keys;
  const KeyExchange exchange = keys.exchange();
  EXPECT_FALSE(
      OpenGlooCollective({.rank = 0, .world_size = 2, .host = "192.0.2.1"}, exchange).ok());
}

}  // namespace
}  // namespace godwit
