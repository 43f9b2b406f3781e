#include "base/memory_file_system.h"

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/testing/matchers.h"
#include "base/thread.h"

namespace godwit {
namespace {

using ::godwit::testing::IsOk;
using ::godwit::testing::IsOkAndHolds;
using ::godwit::testing::StatusIs;
using ::testing::Not;

constexpr uint64_t kLoseAll = 0;
constexpr uint64_t kKeepNames = 1;
constexpr uint64_t kKeepNamesAndLengths = 2;
constexpr uint64_t kKeepAll = 3;
constexpr uint64_t kFirstRandom = 4;

class MemoryFileSystemTest : public ::testing::Test {
 protected:
  std::unique_ptr<WritableFile> Create(const std::string& path, std::string_view bytes) {
    auto file = fs_.CreateExclusive(path).value();
    EXPECT_OK(file->Append(AsBytes(bytes)));
    return file;
  }
  // The file's content after a crash; "(none)" when it has gone.
  std::string After(uint64_t seed, const std::string& path) {
    const Result<std::string> text = fs_.CrashImage(seed)->ReadFile(path, 1 << 20);
    return text.ok() ? *text : "(none)";
  }
  // All that can be there after a crash.
  std::set<std::string> AllAfter(const std::string& path) {
    std::set<std::string> all;
    for (uint64_t seed = 0; seed < 200; ++seed) all.insert(After(seed, path));
    return all;
  }

  MemoryFileSystem fs_;
};

TEST_F(MemoryFileSystemTest, ASyncedFileWithASyncedNameSurvivesEveryCrash) {
  const auto file = Create("/f", "abc");
  ASSERT_OK(file->Sync());
  ASSERT_OK(fs_.SyncDir("/"));
  EXPECT_EQ(AllAfter("/f"), std::set<std::string>{"abc"});
}

TEST_F(MemoryFileSystemTest, WithoutSyncDirTheNameMayBeLost) {
  const auto file = Create("/f", "abc");
  ASSERT_OK(file->Sync());
  EXPECT_EQ(After(kLoseAll, "/f"), "(none)");
  EXPECT_EQ(After(kKeepNames, "/f"), "abc");
  EXPECT_EQ(AllAfter("/f"), (std::set<std::string>{"abc", "(none)"}));
}

TEST_F(MemoryFileSystemTest, WithoutSyncTheTailMayBeLostCutOrZero) {
  const auto file = Create("/f", "ab");
  ASSERT_OK(file->Sync());
  ASSERT_OK(fs_.SyncDir("/"));
  ASSERT_OK(file->Append(AsBytes("cd")));
  const std::string zeros("ab\0\0", 4);
  EXPECT_EQ(After(kLoseAll, "/f"), "ab");
  EXPECT_EQ(After(kKeepNames, "/f"), "ab");
  EXPECT_EQ(After(kKeepNamesAndLengths, "/f"), zeros);
  EXPECT_EQ(After(kKeepAll, "/f"), "abcd");
  EXPECT_EQ(AllAfter("/f"), (std::set<std::string>{"ab", "abc", "abcd", zeros}));
}

TEST_F(MemoryFileSystemTest, ATailMayKeepSomeSectorsOnly) {
  const auto file = Create("/f", std::string(512, 'a') + std::string(512, 'b'));
  ASSERT_OK(fs_.SyncDir("/"));
  EXPECT_TRUE(AllAfter("/f").contains(std::string(512, '\0') + std::string(512, 'b')));
}

TEST_F(MemoryFileSystemTest, CloseIsNoSync) {
  const auto file = Create("/f", "abc");
  ASSERT_OK(fs_.SyncDir("/"));
  ASSERT_OK(file->Close());
  EXPECT_EQ(After(kLoseAll, "/f"), "");
}

TEST_F(MemoryFileSystemTest, SyncOfOneDirectoryIsNotThatOfAnother) {
  ASSERT_OK(fs_.CreateDir("/d"));
  const auto file = Create("/d/f", "abc");
  ASSERT_OK(file->Sync());
  ASSERT_OK(fs_.SyncDir("/d"));
  EXPECT_EQ(After(kLoseAll, "/d/f"), "(none)");  // the name of /d itself
  ASSERT_OK(fs_.SyncDir("/"));
  EXPECT_EQ(AllAfter("/d/f"), std::set<std::string>{"abc"});
}

TEST_F(MemoryFileSystemTest, ARemovedFileMayComeBackUntilSyncDir) {
  const auto file = Create("/f", "abc");
  ASSERT_OK(file->Sync());
  ASSERT_OK(fs_.SyncDir("/"));
  ASSERT_OK(fs_.Unlink("/f"));
  EXPECT_EQ(AllAfter("/f"), (std::set<std::string>{"abc", "(none)"}));
  ASSERT_OK(fs_.SyncDir("/"));
  EXPECT_EQ(AllAfter("/f"), std::set<std::string>{"(none)"});
}

TEST_F(MemoryFileSystemTest, ARenameWithinADirectoryIsAtomic) {
  const auto a = Create("/a", "new");
  ASSERT_OK(a->Sync());
  const auto b = Create("/b", "old");
  ASSERT_OK(b->Sync());
  ASSERT_OK(fs_.SyncDir("/"));
  ASSERT_OK(fs_.Rename("/a", "/b"));
  bool done = false, undone = false;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const auto image = fs_.CrashImage(seed);
    const bool has_a = image->Stat("/a").ok();
    (has_a ? undone : done) = true;
    EXPECT_THAT(image->ReadFile("/b", 9), IsOkAndHolds(has_a ? "old" : "new")) << seed;
  }
  EXPECT_TRUE(done && undone);
}

TEST_F(MemoryFileSystemTest, ChangesOfADirectorySurviveInAnyOrder) {
  Create("/a", "");
  Create("/b", "");
  bool only_second = false;
  for (uint64_t seed = kFirstRandom; seed < 100; ++seed) {
    const auto image = fs_.CrashImage(seed);
    only_second |= !image->Stat("/a").ok() && image->Stat("/b").ok();
  }
  EXPECT_TRUE(only_second);
}

TEST_F(MemoryFileSystemTest, ALinkKeepsTheBytesOfTheFirstName) {
  const auto file = Create("/tmp", "abc");
  ASSERT_OK(file->Sync());
  ASSERT_OK(fs_.Link("/tmp", "/f"));
  ASSERT_OK(fs_.Unlink("/tmp"));
  ASSERT_OK(fs_.SyncDir("/"));
  EXPECT_EQ(AllAfter("/f"), std::set<std::string>{"abc"});
  EXPECT_EQ(AllAfter("/tmp"), std::set<std::string>{"(none)"});
}

TEST_F(MemoryFileSystemTest, ACrashKeepsTwoNamesOfOneFileTogether) {
  const auto file = Create("/a", "abcdefgh");
  ASSERT_OK(fs_.Link("/a", "/b"));
  ASSERT_OK(fs_.SyncDir("/"));
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const auto image = fs_.CrashImage(seed);
    EXPECT_EQ(image->ReadFile("/a", 9).value(), image->ReadFile("/b", 9).value());
  }
}

TEST_F(MemoryFileSystemTest, AMoveBetweenDirectoriesMayBeHalfDone) {
  ASSERT_OK(fs_.CreateDir("/d"));
  const auto file = Create("/f", "abc");
  ASSERT_OK(file->Sync());
  ASSERT_OK(fs_.SyncDir("/"));
  ASSERT_OK(fs_.Rename("/f", "/d/f"));
  std::set<int> names;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const auto image = fs_.CrashImage(seed);
    names.insert((image->Stat("/f").ok() ? 1 : 0) + (image->Stat("/d/f").ok() ? 2 : 0));
  }
  EXPECT_EQ(names, (std::set<int>{0, 1, 2, 3}));
}

TEST_F(MemoryFileSystemTest, ADirectoryThatMayBeInTwoPlacesIsInOne) {
  ASSERT_OK(fs_.CreateDirs("/a/x"));
  ASSERT_OK(fs_.CreateDirs("/b"));
  const auto file = Create("/a/x/f", "abc");
  ASSERT_OK(fs_.Rename("/a/x", "/b/x"));
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const auto image = fs_.CrashImage(seed);
    EXPECT_FALSE(image->Stat("/a/x").ok() && image->Stat("/b/x").ok()) << seed;
  }
}

TEST_F(MemoryFileSystemTest, AnImageIsDurableAndIndependent) {
  const auto file = Create("/f", "abc");
  const auto image = fs_.CrashImage(kKeepAll);
  ASSERT_OK(file->Append(AsBytes("def")));
  EXPECT_THAT(image->ReadFile("/f", 9), IsOkAndHolds("abc"));
  EXPECT_THAT(image->CrashImage(kLoseAll)->ReadFile("/f", 9), IsOkAndHolds("abc"));
}

TEST_F(MemoryFileSystemTest, TheSameSeedGivesTheSameImage) {
  for (int i = 0; i < 20; ++i) Create("/f" + std::to_string(i), std::string(3000, 'x'));
  const auto dump = [](MemoryFileSystem& fs) {
    std::map<std::string, std::string> all;
    for (const DirEntry& e : fs.List("/").value()) {
      all[e.name] = fs.ReadFile("/" + e.name, 1 << 20).value();
    }
    return all;
  };
  EXPECT_EQ(dump(*fs_.CrashImage(77)), dump(*fs_.CrashImage(77)));
  EXPECT_NE(dump(*fs_.CrashImage(77)), dump(*fs_.CrashImage(78)));
}

TEST_F(MemoryFileSystemTest, ACrashEndsOpenFiles) {
  const auto out = Create("/f", "abc");
  ASSERT_OK(out->Sync());
  ASSERT_OK(fs_.SyncDir("/"));
  ASSERT_OK_AND_ASSIGN(const auto in, fs_.OpenRead("/f"));
  ASSERT_OK(out->Append(AsBytes("lost")));
  fs_.Crash(kLoseAll);
  std::byte buffer[1];
  EXPECT_THAT(out->Append(AsBytes("x")), StatusIs(StatusCode::kUnavailable));
  EXPECT_THAT(out->Sync(), StatusIs(StatusCode::kUnavailable));
  EXPECT_THAT(in->ReadAt(0, buffer), StatusIs(StatusCode::kUnavailable));
  EXPECT_THAT(fs_.ReadFile("/f", 9), IsOkAndHolds("abc"));
}

TEST_F(MemoryFileSystemTest, AFullDiskTakesWhatFitsAndUnlinkFreesIt) {
  fs_.SetCapacity(10);
  const auto file = Create("/a", "12345678");
  EXPECT_THAT(file->Append(AsBytes("9abc")), StatusIs(StatusCode::kResourceExhausted));
  EXPECT_THAT(fs_.ReadFile("/a", 99), IsOkAndHolds("123456789a"));
  EXPECT_THAT(file->Append(AsBytes("x")), Not(IsOk()));  // for ever
  EXPECT_EQ(fs_.Space("/")->free_bytes, 0u);
  ASSERT_OK(fs_.Link("/a", "/b"));  // takes no bytes
  ASSERT_OK(fs_.Unlink("/a"));
  EXPECT_THAT(WriteFileExclusive(fs_, "/c", AsBytes("x"), Durability::kNone), Not(IsOk()));
  ASSERT_OK(fs_.Unlink("/b"));
  EXPECT_OK(WriteFileExclusive(fs_, "/c", AsBytes("1234567890"), Durability::kNone));
}

TEST_F(MemoryFileSystemTest, DamageIsDurable) {
  const auto file = Create("/f", "abc");
  ASSERT_OK(file->Sync());
  ASSERT_OK(fs_.SyncDir("/"));
  ASSERT_OK(fs_.CorruptByte("/f", 1, 0x01));
  EXPECT_EQ(After(kLoseAll, "/f"), "acc");
  ASSERT_OK(fs_.Truncate("/f", 2));
  EXPECT_EQ(AllAfter("/f"), std::set<std::string>{"ac"});
  EXPECT_THAT(fs_.CorruptByte("/f", 2, 1), StatusIs(StatusCode::kInvalidArgument));
}

TEST_F(MemoryFileSystemTest, TakesTheTimeFromItsClock) {
  FakeClock clock;
  MemoryFileSystem fs(1000, clock);
  ASSERT_OK(WriteFileExclusive(fs, "/f", AsBytes("x"), Durability::kNone));
  EXPECT_EQ(fs.Stat("/f")->modified_unix, clock.WallUnix());
}

TEST_F(MemoryFileSystemTest, PathsAreNormalised) {
  ASSERT_OK(fs_.CreateDirs("/a/b"));
  Create("a/./b/../f", "x");
  EXPECT_OK(fs_.Stat("//a//f"));
  EXPECT_OK(fs_.Stat("/../a/f"));
  EXPECT_THAT(fs_.Stat(""), StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(fs_.Stat("/" + std::string(256, 'x')), StatusIs(StatusCode::kInvalidArgument));
}

// Whatever the order of calls, what was synced is there.
TEST_F(MemoryFileSystemTest, RandomCallsNeverLoseWhatWasSynced) {
  const uint64_t seed = SystemRandom64();
  SCOPED_TRACE(seed);
  Random random(seed);
  std::map<std::string, std::unique_ptr<WritableFile>> open;
  std::map<std::string, std::string> written, synced;  // content by name
  std::set<std::string> durable_names;
  for (int step = 0; step < 300; ++step) {
    const std::string name = "/f" + std::to_string(random.Below(5));
    switch (random.Below(4)) {
      case 0:
        if (!open.contains(name)) open[name] = fs_.CreateExclusive(name).value();
        break;
      case 1:
        if (open.contains(name)) {
          const std::string bytes(random.Below(1000), static_cast<char>('a' + random.Below(26)));
          ASSERT_OK(open[name]->Append(AsBytes(bytes)));
          written[name] += bytes;
        }
        break;
      case 2:
        if (open.contains(name)) {
          ASSERT_OK(open[name]->Sync());
          synced[name] = written[name];
        }
        break;
      default:
        ASSERT_OK(fs_.SyncDir("/"));
        for (const auto& [n, file] : open) durable_names.insert(n);
    }
    const auto image = fs_.CrashImage(random.Next());
    for (const std::string& n : durable_names) {
      ASSERT_OK_AND_ASSIGN(const std::string got, image->ReadFile(n, 1 << 20));
      ASSERT_TRUE(got.starts_with(synced[n])) << n;
      ASSERT_LE(got.size(), written[n].size());
    }
  }
}

TEST_F(MemoryFileSystemTest, SeveralThreadsMayCrashAndWrite) {
  std::vector<Thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back("writer", [this, t](StopToken) {
      for (int i = 0; i < 100; ++i) {
        const std::string path = "/" + std::to_string(t) + "-" + std::to_string(i);
        EXPECT_OK(WriteFileExclusive(fs_, path, AsBytes("abc"), Durability::kFileAndName));
        EXPECT_THAT(fs_.CrashImage(i)->ReadFile(path, 9), IsOkAndHolds("abc"));
      }
    });
  }
}

}  // namespace
}  // namespace godwit
