#include "master/process/journal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "base/fault_file_system.h"
#include "base/memory_file_system.h"
#include "base/testing/matchers.h"
#include "master/core/durable.h"

namespace godwit::master {
namespace {

using godwit::testing::IsOk;
using godwit::testing::StatusIs;

constexpr char kDir[] = "/run/master";

Durable Numbered(uint64_t n) {
  Durable d;
  d.epoch = n;
  d.directory = "/ckpt";
  d.has_directory = true;
  d.committed = SaveId{1, n * 10, static_cast<uint32_t>(n)};
  d.notices.push_back({.id = "n" + std::to_string(n), .message = std::string(100, 'x')});
  return d;
}

std::unique_ptr<Journal> OpenOk(FileSystem& fs, const std::string& boot = "boot-a") {
  auto journal = Journal::Open(fs, kDir, boot);
  EXPECT_THAT(journal, IsOk());
  return journal.ok() ? std::move(journal).value() : nullptr;
}

TEST(Journal, NewJobHasNothingToRecover) {
  MemoryFileSystem fs;
  EXPECT_FALSE(OpenOk(fs)->recovered());
}

TEST(Journal, NewestAppendIsWhatTheNextMasterFinds) {
  MemoryFileSystem fs;
  {
    auto journal = OpenOk(fs);
    for (uint64_t n = 1; n <= 5; ++n) ASSERT_OK(journal->Append(Numbered(n)));
  }
  fs.Crash(0);
  auto journal = OpenOk(fs);
  ASSERT_TRUE(journal->recovered());
  EXPECT_EQ(*journal->recovered(), Numbered(5));
  EXPECT_TRUE(journal->same_boot());
  // One that only started and wrote nothing loses nothing.
  EXPECT_EQ(*OpenOk(fs)->recovered(), Numbered(5));
}

TEST(Journal, AnotherBootIsNoticed) {
  MemoryFileSystem fs;
  ASSERT_OK(OpenOk(fs)->Append(Numbered(1)));
  EXPECT_FALSE(OpenOk(fs, "boot-b")->same_boot());
}

TEST(Journal, LongOneIsReplacedByANewFile) {
  MemoryFileSystem fs;
  auto journal = OpenOk(fs);
  Durable d = Numbered(1);
  for (int i = 0; i < 60; ++i) {
    d.notices.push_back({.id = std::to_string(i), .message = std::string(4000, 'y')});
  }
  for (uint64_t n = 1; n <= 40; ++n) {
    d.epoch = n;
    ASSERT_OK(journal->Append(d));
  }
  ASSERT_OK_AND_ASSIGN(const auto entries, fs.List(kDir));
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_LT(entries[0].size, 3u << 20);
  EXPECT_EQ(OpenOk(fs)->recovered()->epoch, 40u);
}

TEST(Journal, TornRecordAtTheEndIsPassedOver) {
  MemoryFileSystem fs;
  ASSERT_OK(OpenOk(fs)->Append(Numbered(1)));
  {
    auto journal = OpenOk(fs);  // rewrites record 1, then adds 2
    ASSERT_OK(journal->Append(Numbered(2)));
  }
  ASSERT_OK_AND_ASSIGN(const auto entries, fs.List(kDir));
  const std::string path = JoinPath(kDir, entries.back().name);
  for (uint64_t cut = 1; cut < 40; cut += 7) {
    auto image = fs.CrashImage(3);
    ASSERT_OK(image->Truncate(path, entries.back().size - cut));
    EXPECT_EQ(*OpenOk(*image)->recovered(), Numbered(1)) << "cut " << cut;
  }
  ASSERT_OK(fs.CorruptByte(path, entries.back().size - 5, 0x10));
  EXPECT_EQ(*OpenOk(fs)->recovered(), Numbered(1));
}

TEST(Journal, RecordOfAnotherVersionIsRefusedByName) {
  std::string bytes = EncodeDurable(Numbered(1));
  bytes[0] = 7;
  EXPECT_THAT(DecodeDurable(AsBytes(bytes)),
              StatusIs(StatusCode::kFailedPrecondition, ::testing::HasSubstr("version 7")));
}

TEST(Durable, NoCutOrFlippedRecordIsMoreThanAnError) {
  const std::string whole = EncodeDurable(Numbered(3));
  ASSERT_OK_AND_ASSIGN(const Durable back, DecodeDurable(AsBytes(whole)));
  EXPECT_EQ(back, Numbered(3));
  for (size_t n = 0; n < whole.size(); ++n) {
    EXPECT_FALSE(DecodeDurable(AsBytes(std::string_view(whole).substr(0, n))).ok()) << n;
    std::string flipped = whole;
    flipped[n] = static_cast<char>(flipped[n] ^ 0xff);
    (void)DecodeDurable(AsBytes(flipped));  // whatever it says, it comes back
  }
}

// A crash at each file-system call of three starts with appends in between: the state that was
// acknowledged last is found, or the one whose Append was under way.
TEST(Journal, CrashAtEachCallLosesNothingThatWasAcknowledged) {
  const auto run = [](FileSystem& fs, uint64_t& acknowledged, uint64_t& begun) {
    uint64_t n = 0;
    for (int start = 0; start < 3; ++start) {
      auto journal = Journal::Open(fs, kDir, "boot-a");
      if (!journal.ok()) return;
      for (int i = 0; i < 3; ++i) {
        begun = ++n;
        if (!(*journal)->Append(Numbered(n)).ok()) return;
        acknowledged = n;
      }
    }
  };
  uint64_t calls = 0;
  {
    MemoryFileSystem memory;
    FaultFileSystem fs(memory);
    uint64_t acknowledged = 0, begun = 0;
    run(fs, acknowledged, begun);
    ASSERT_EQ(acknowledged, 9u);
    calls = fs.calls();
  }
  for (uint64_t at = 1; at <= calls; ++at) {
    for (const uint64_t seed : {0, 1, 2, 3, 17, 18, 19}) {
      MemoryFileSystem memory;
      FaultFileSystem fs(memory);
      fs.CrashAt(at);
      uint64_t acknowledged = 0, begun = 0;
      run(fs, acknowledged, begun);
      auto image = memory.CrashImage(seed);
      auto journal = OpenOk(*image);
      ASSERT_NE(journal, nullptr) << "call " << at << ", seed " << seed;
      const uint64_t found = journal->recovered() ? journal->recovered()->epoch : 0;
      EXPECT_GE(found, acknowledged) << "call " << at << ", seed " << seed;
      EXPECT_LE(found, begun) << "call " << at << ", seed " << seed;
      ASSERT_OK(journal->Append(Numbered(99))) << "call " << at << ", seed " << seed;
      EXPECT_EQ(OpenOk(*image)->recovered()->epoch, 99u);
    }
  }
}

TEST(Journal, FailedAppendIsMadeGoodByTheNext) {
  uint64_t calls = 0;
  {
    MemoryFileSystem memory;
    FaultFileSystem fs(memory);
    auto journal = OpenOk(fs);
    for (uint64_t n = 1; n <= 3; ++n) ASSERT_OK(journal->Append(Numbered(n)));
    calls = fs.calls();
  }
  for (uint64_t at = 1; at <= calls; ++at) {
    MemoryFileSystem memory;
    FaultFileSystem fs(memory);
    fs.FailAt(at, 28 /* ENOSPC */);
    auto journal = Journal::Open(fs, kDir, "boot-a");
    if (!journal.ok()) continue;
    for (uint64_t n = 1; n <= 5; ++n) (void)(*journal)->Append(Numbered(n));
    memory.Crash(0);
    EXPECT_EQ(OpenOk(memory)->recovered()->epoch, 5u) << "call " << at;
  }
}

}  // namespace
}  // namespace godwit::master
