#include "runtime/collective/host_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/testing/matchers.h"

namespace godwit {
namespace {

using ::godwit::testing::IsOkAndHolds;
using ::godwit::testing::StatusIs;
using ::testing::HasSubstr;

MonotonicTime Soon() { return SaturatingAdd(MonotonicClock::now(), std::chrono::seconds(30)); }

Result<std::vector<std::string>> NeverAsked(const std::string& host) {
  ADD_FAILURE() << host << " was looked up";
  return std::vector<std::string>();
}

TEST(HostAddressTest, AnAddressIsTakenAsItIs) {
  EXPECT_THAT(LocalAddressOf("127.0.0.1", Soon(), NeverAsked), IsOkAndHolds("127.0.0.1"));
  EXPECT_THAT(LocalAddressOf("::1", Soon(), NeverAsked), IsOkAndHolds("::1"));
}

TEST(HostAddressTest, OfANamesAddressesThisHostsIsTaken) {
  const Lookup lookup = [](const std::string& host) -> Result<std::vector<std::string>> {
    EXPECT_EQ(host, "node-7");
    return std::vector<std::string>{"198.51.100.7", "127.0.0.1"};  // the first is for documentation
  };
  EXPECT_THAT(LocalAddressOf("node-7", Soon(), lookup), IsOkAndHolds("127.0.0.1"));
}

TEST(HostAddressTest, ANameOfAnotherHostIsRefusedWithItsAddresses) {
  const Lookup lookup = [](const std::string&) -> Result<std::vector<std::string>> {
    return std::vector<std::string>{"198.51.100.7", "203.0.113.9"};
  };
  const Result<std::string> address = LocalAddressOf("elsewhere", Soon(), lookup);
  EXPECT_THAT(address, StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(address.status().message(), HasSubstr("198.51.100.7, 203.0.113.9"));
}

TEST(HostAddressTest, ALookupThatDoesNotComeBackIsGivenUpAtTheDeadline) {
  struct Shared {
    Mutex mutex;
    CondVar changed;
    bool release GUARDED_BY(mutex) = false;
    bool ended GUARDED_BY(mutex) = false;
  };
  const auto shared = std::make_shared<Shared>();
  const Lookup lookup = [shared](const std::string&) -> Result<std::vector<std::string>> {
    MutexLock lock(shared->mutex);
    while (!shared->release) shared->changed.Wait(shared->mutex);
    shared->ended = true;
    shared->changed.NotifyAll();
    return std::vector<std::string>{"127.0.0.1"};
  };
  const MonotonicTime deadline =
      SaturatingAdd(MonotonicClock::now(), std::chrono::milliseconds(20));
  const Result<std::string> address = LocalAddressOf("slow", deadline, lookup);
  EXPECT_THAT(address, StatusIs(StatusCode::kDeadlineExceeded));
  EXPECT_THAT(address.status().message(), HasSubstr("host 'slow'"));
  // Its answer comes later, and finds what it writes to.
  MutexLock lock(shared->mutex);
  shared->release = true;
  shared->changed.NotifyAll();
  while (!shared->ended) ASSERT_TRUE(shared->changed.WaitUntil(shared->mutex, Soon()));
}

TEST(HostAddressTest, ANameThatNobodyKnowsIsNamed) {
  const Lookup lookup = [](const std::string& host) -> Result<std::vector<std::string>> {
    return NotFoundError("host '" + host + "': Name or service not known");
  };
  EXPECT_THAT(LocalAddressOf("nobody", Soon(), lookup).status().message(), HasSubstr("'nobody'"));
}

TEST(HostAddressTest, LocalhostIsKnownEverywhere) {
  EXPECT_THAT(LocalAddressOf("localhost", Soon()),
              ::testing::AnyOf(IsOkAndHolds("127.0.0.1"), IsOkAndHolds("::1")));
}

}  // namespace
}  // namespace godwit
