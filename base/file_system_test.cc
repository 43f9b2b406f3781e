#include "base/file_system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fault_file_system.h"
#include "base/memory_file_system.h"
#include "base/real_file_system.h"
#include "base/temp_dir.h"
#include "base/testing/matchers.h"
#include "base/thread.h"

namespace godwit {
namespace {

using ::godwit::testing::IsOkAndHolds;
using ::godwit::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(PathTest, PartsOfPaths) {
  EXPECT_EQ(JoinPath("a", "b"), "a/b");
  EXPECT_EQ(JoinPath("a/", "b"), "a/b");
  EXPECT_EQ(JoinPath("/", "b"), "/b");
  EXPECT_EQ(JoinPath("", "b"), "b");
  EXPECT_EQ(DirName("/a/b"), "/a");
  EXPECT_EQ(DirName("/a/b/"), "/a");
  EXPECT_EQ(DirName("/a//b"), "/a");
  EXPECT_EQ(DirName("/a"), "/");
  EXPECT_EQ(DirName("/"), "/");
  EXPECT_EQ(DirName("a"), ".");
  EXPECT_EQ(BaseName("/a/b"), "b");
  EXPECT_EQ(BaseName("/a/b/"), "b");
  EXPECT_EQ(BaseName("a"), "a");
}

// What every file system of ours keeps to.
struct Backend {
  virtual ~Backend() = default;
  virtual FileSystem& fs() = 0;
  virtual std::string dir() = 0;  // empty, exists
};

struct RealBackend : Backend {
  FileSystem& fs() override { return RealFileSystem(); }
  std::string dir() override { return temp.path(); }
  TempDir temp = TempDir::Create("godwit-fs").value();
};

struct MemoryBackend : Backend {
  MemoryBackend() { EXPECT_OK(memory.CreateDir("/dir")); }
  FileSystem& fs() override { return memory; }
  std::string dir() override { return "/dir"; }
  MemoryFileSystem memory;
};

struct FaultBackend : MemoryBackend {
  FileSystem& fs() override { return fault; }
  FaultFileSystem fault{memory};
};

struct BackendCase {
  const char* name;
  std::function<std::unique_ptr<Backend>()> make;
};

class FileSystemTest : public ::testing::TestWithParam<BackendCase> {
 protected:
  std::string Path(std::string_view name) { return JoinPath(backend_->dir(), name); }
  void Write(const std::string& path, std::string_view bytes) {
    ASSERT_OK(WriteFileExclusive(fs_, path, AsBytes(bytes), Durability::kNone));
  }
  std::vector<std::string> Names(const std::string& path) {
    std::vector<std::string> names;
    for (const DirEntry& e : fs_.List(path).value()) names.push_back(e.name);
    return names;
  }

  std::unique_ptr<Backend> backend_ = GetParam().make();
  FileSystem& fs_ = backend_->fs();
};

TEST_P(FileSystemTest, WhatWasAppendedIsRead) {
  ASSERT_OK_AND_ASSIGN(const auto file, fs_.CreateExclusive(Path("f")));
  EXPECT_EQ(file->offset(), 0u);
  EXPECT_OK(file->Append(AsBytes("hello ")));
  EXPECT_OK(file->Append({}));
  EXPECT_OK(file->Append(AsBytes("world")));
  EXPECT_EQ(file->offset(), 11u);
  EXPECT_OK(file->Sync());
  EXPECT_OK(file->Close());
  EXPECT_THAT(fs_.ReadFile(Path("f"), 100), IsOkAndHolds("hello world"));
}

TEST_P(FileSystemTest, BytesAreVisibleBeforeSync) {
  ASSERT_OK_AND_ASSIGN(const auto file, fs_.CreateExclusive(Path("f")));
  EXPECT_OK(file->Append(AsBytes("abc")));
  EXPECT_THAT(fs_.ReadFile(Path("f"), 100), IsOkAndHolds("abc"));
}

TEST_P(FileSystemTest, AClosedFileTakesNothingMore) {
  ASSERT_OK_AND_ASSIGN(const auto file, fs_.CreateExclusive(Path("f")));
  EXPECT_OK(file->Close());
  EXPECT_OK(file->Close());
  EXPECT_FALSE(file->Append(AsBytes("x")).ok());
  EXPECT_FALSE(file->Sync().ok());
}

TEST_P(FileSystemTest, CreateExclusiveRefusesATakenName) {
  Write(Path("f"), "old");
  EXPECT_THAT(fs_.CreateExclusive(Path("f")),
              StatusIs(StatusCode::kAlreadyExists, HasSubstr(Path("f"))));
  EXPECT_THAT(fs_.CreateExclusive(backend_->dir()), StatusIs(StatusCode::kAlreadyExists));
  EXPECT_THAT(fs_.ReadFile(Path("f"), 100), IsOkAndHolds("old"));
}

TEST_P(FileSystemTest, OfSeveralCreatorsOneWins) {
  std::atomic<int> winners = 0;
  std::atomic<int> losers = 0;
  {
    std::vector<Thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back("creator", [&](StopToken) {
        const auto file = fs_.CreateExclusive(Path("f"));
        if (file.ok()) ++winners;
        if (file.status().code() == StatusCode::kAlreadyExists) ++losers;
      });
    }
    for (Thread& t : threads) t.Join();
  }
  EXPECT_EQ(winners, 1);
  EXPECT_EQ(losers, 3);
}

TEST_P(FileSystemTest, MissingPathsAreNotFound) {
  EXPECT_THAT(fs_.CreateExclusive(Path("no/f")), StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(fs_.OpenRead(Path("no")), StatusIs(StatusCode::kNotFound, HasSubstr(Path("no"))));
  EXPECT_THAT(fs_.Stat(Path("no")), StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(fs_.List(Path("no")), StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(fs_.Unlink(Path("no")), StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(fs_.RemoveDir(Path("no")), StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(fs_.Link(Path("no"), Path("x")), StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(fs_.Rename(Path("no"), Path("x")), StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(fs_.CreateDir(Path("no/x")), StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(fs_.SyncDir(Path("no")), StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(fs_.Space(Path("no")), StatusIs(StatusCode::kNotFound));
}

TEST_P(FileSystemTest, AFileIsNoDirectoryAndTheOtherWayRound) {
  Write(Path("f"), "x");
  EXPECT_THAT(fs_.OpenRead(backend_->dir()), StatusIs(StatusCode::kFailedPrecondition));
  EXPECT_THAT(fs_.List(Path("f")), StatusIs(StatusCode::kFailedPrecondition));
  EXPECT_THAT(fs_.SyncDir(Path("f")), StatusIs(StatusCode::kFailedPrecondition));
  EXPECT_THAT(fs_.RemoveDir(Path("f")), StatusIs(StatusCode::kFailedPrecondition));
  EXPECT_THAT(fs_.CreateExclusive(Path("f/x")), StatusIs(StatusCode::kFailedPrecondition));
  ASSERT_OK(fs_.CreateDir(Path("d")));
  EXPECT_THAT(fs_.Unlink(Path("d")), StatusIs(StatusCode::kFailedPrecondition));
}

TEST_P(FileSystemTest, ReadAtFillsOrEndsAtTheEndOfTheFile) {
  Write(Path("f"), "0123456789");
  ASSERT_OK_AND_ASSIGN(const auto file, fs_.OpenRead(Path("f")));
  EXPECT_EQ(file->size(), 10u);
  std::byte buffer[4];
  EXPECT_THAT(file->ReadAt(2, buffer), IsOkAndHolds(4u));
  EXPECT_EQ(AsString(buffer), "2345");
  EXPECT_THAT(file->ReadAt(8, buffer), IsOkAndHolds(2u));
  EXPECT_THAT(file->ReadAt(10, buffer), IsOkAndHolds(0u));
  EXPECT_THAT(file->ReadAt(UINT64_MAX, buffer), IsOkAndHolds(0u));
  EXPECT_OK(file->ReadFully(6, buffer));
  EXPECT_THAT(file->ReadFully(7, buffer), StatusIs(StatusCode::kDataLoss));
}

TEST_P(FileSystemTest, AnOpenFileOutlivesItsName) {
  Write(Path("f"), "abc");
  ASSERT_OK_AND_ASSIGN(const auto file, fs_.OpenRead(Path("f")));
  ASSERT_OK(fs_.Unlink(Path("f")));
  std::byte buffer[3];
  EXPECT_OK(file->ReadFully(0, buffer));
}

TEST_P(FileSystemTest, ReadFileRefusesMoreThanAllowed) {
  Write(Path("f"), "abc");
  EXPECT_THAT(fs_.ReadFile(Path("f"), 2), StatusIs(StatusCode::kOutOfRange, HasSubstr("3 bytes")));
  EXPECT_THAT(fs_.ReadFile(Path("f"), 3), IsOkAndHolds("abc"));
}

TEST_P(FileSystemTest, LinkGivesASecondNameAndNeverReplaces) {
  Write(Path("a"), "A");
  Write(Path("b"), "B");
  EXPECT_THAT(fs_.Link(Path("a"), Path("b")), StatusIs(StatusCode::kAlreadyExists));
  EXPECT_THAT(fs_.ReadFile(Path("b"), 9), IsOkAndHolds("B"));
  EXPECT_OK(fs_.Link(Path("a"), Path("c")));
  EXPECT_OK(fs_.Unlink(Path("a")));
  EXPECT_THAT(fs_.ReadFile(Path("c"), 9), IsOkAndHolds("A"));
}

TEST_P(FileSystemTest, RenameMovesAndReplaces) {
  Write(Path("a"), "A");
  Write(Path("b"), "B");
  EXPECT_OK(fs_.Rename(Path("a"), Path("b")));
  EXPECT_THAT(Names(backend_->dir()), ElementsAre("b"));
  EXPECT_THAT(fs_.ReadFile(Path("b"), 9), IsOkAndHolds("A"));
}

TEST_P(FileSystemTest, RenameOfDirectories) {
  ASSERT_OK(fs_.CreateDir(Path("d")));
  ASSERT_OK(fs_.CreateDir(Path("full")));
  Write(Path("full/f"), "x");
  Write(Path("file"), "x");
  EXPECT_THAT(fs_.Rename(Path("d"), Path("full")), StatusIs(StatusCode::kFailedPrecondition));
  EXPECT_THAT(fs_.Rename(Path("d"), Path("file")), StatusIs(StatusCode::kFailedPrecondition));
  EXPECT_THAT(fs_.Rename(Path("file"), Path("d")), StatusIs(StatusCode::kFailedPrecondition));
  EXPECT_THAT(fs_.Rename(Path("full"), Path("full/x")), StatusIs(StatusCode::kInvalidArgument));
  EXPECT_OK(fs_.Rename(Path("full"), Path("d")));  // empty: may be replaced
  EXPECT_THAT(fs_.ReadFile(Path("d/f"), 9), IsOkAndHolds("x"));
  EXPECT_THAT(Names(backend_->dir()), ElementsAre("d", "file"));
}

TEST_P(FileSystemTest, ListIsSortedAndKnowsKindsAndSizes) {
  Write(Path("b"), "12345");
  ASSERT_OK(fs_.CreateDir(Path("a")));
  Write(Path("a/inner"), "x");
  Write(Path("C"), "");
  EXPECT_THAT(fs_.List(backend_->dir()),
              IsOkAndHolds(ElementsAre(DirEntry{"C", false, 0}, DirEntry{"a", true, 0},
                                       DirEntry{"b", false, 5})));
}

TEST_P(FileSystemTest, StatKnowsSizeKindAndTime) {
  Write(Path("f"), "123");
  ASSERT_OK_AND_ASSIGN(const FileInfo file, fs_.Stat(Path("f")));
  EXPECT_FALSE(file.is_dir);
  EXPECT_EQ(file.size, 3u);
  // File systems may round down to coarse ticks.
  EXPECT_NEAR(std::chrono::duration<double>(file.modified_unix).count(),
              std::chrono::duration<double>(RealClock().WallUnix()).count(), 60);
  ASSERT_OK_AND_ASSIGN(const FileInfo dir, fs_.Stat(backend_->dir()));
  EXPECT_TRUE(dir.is_dir);
  EXPECT_EQ(dir.size, 0u);
}

TEST_P(FileSystemTest, OnlyEmptyDirectoriesAreRemoved) {
  ASSERT_OK(fs_.CreateDir(Path("d")));
  EXPECT_THAT(fs_.CreateDir(Path("d")), StatusIs(StatusCode::kAlreadyExists));
  Write(Path("d/f"), "x");
  EXPECT_THAT(fs_.RemoveDir(Path("d")), StatusIs(StatusCode::kFailedPrecondition));
  ASSERT_OK(fs_.Unlink(Path("d/f")));
  EXPECT_OK(fs_.RemoveDir(Path("d")));
  EXPECT_THAT(Names(backend_->dir()), IsEmpty());
}

TEST_P(FileSystemTest, CreateDirsMakesWhatIsMissing) {
  EXPECT_OK(fs_.CreateDirs(Path("a/b/c")));
  EXPECT_OK(fs_.CreateDirs(Path("a/b/c")));
  EXPECT_OK(fs_.CreateDirs(Path("a/b/d/")));
  EXPECT_THAT(Names(Path("a/b")), ElementsAre("c", "d"));
  Write(Path("f"), "x");
  EXPECT_THAT(fs_.CreateDirs(Path("f")), StatusIs(StatusCode::kFailedPrecondition));
  EXPECT_THAT(fs_.CreateDirs(Path("f/x")), StatusIs(StatusCode::kFailedPrecondition));
}

TEST_P(FileSystemTest, SpaceIsPlausible) {
  ASSERT_OK_AND_ASSIGN(const SpaceInfo space, fs_.Space(backend_->dir()));
  EXPECT_GT(space.total_bytes, 0u);
  EXPECT_LE(space.free_bytes, space.total_bytes);
}

TEST_P(FileSystemTest, WriteFileAtomicLeavesOnlyTheFile) {
  EXPECT_OK(WriteFileAtomic(fs_, Path("f.tmp"), Path("f"), AsBytes("abc")));
  EXPECT_THAT(fs_.ReadFile(Path("f"), 9), IsOkAndHolds("abc"));
  EXPECT_THAT(WriteFileAtomic(fs_, Path("f.tmp"), Path("f"), AsBytes("def")),
              StatusIs(StatusCode::kAlreadyExists));
  EXPECT_THAT(fs_.ReadFile(Path("f"), 9), IsOkAndHolds("abc"));
  EXPECT_THAT(Names(backend_->dir()), ElementsAre("f"));
}

INSTANTIATE_TEST_SUITE_P(
    All, FileSystemTest,
    ::testing::Values(BackendCase{"Real", [] { return std::make_unique<RealBackend>(); }},
                      BackendCase{"Memory", [] { return std::make_unique<MemoryBackend>(); }},
                      BackendCase{"Fault", [] { return std::make_unique<FaultBackend>(); }}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(RealFileSystemTest, DescriptorsAreCloseOnExec) {
  ASSERT_OK_AND_ASSIGN(const TempDir dir, TempDir::Create());
  ASSERT_OK_AND_ASSIGN(const auto out, RealFileSystem().CreateExclusive(dir.File("f")));
  ASSERT_OK_AND_ASSIGN(const auto in, RealFileSystem().OpenRead(dir.File("f")));
  ASSERT_OK_AND_ASSIGN(const std::vector<DirEntry> fds, RealFileSystem().List("/proc/self/fd"));
  int checked = 0;
  for (const DirEntry& e : fds) {
    char target[4096] = {};
    if (readlink(("/proc/self/fd/" + e.name).c_str(), target, sizeof(target) - 1) < 0) continue;
    if (dir.File("f") != target) continue;
    ++checked;
    EXPECT_TRUE(fcntl(std::stoi(e.name), F_GETFD) & FD_CLOEXEC);
  }
  EXPECT_EQ(checked, 2);
}

TEST(RealFileSystemTest, AFifoDoesNotBlockTheReader) {
  ASSERT_OK_AND_ASSIGN(const TempDir dir, TempDir::Create());
  ASSERT_EQ(mkfifo(dir.File("fifo").c_str(), 0600), 0);
  EXPECT_OK(RealFileSystem().OpenRead(dir.File("fifo")));  // would hang until a writer came
}

TEST(RealFileSystemTest, AFailedWriteMakesTheFileUnusable) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full here";
  // A file that is full cannot be made portably; a limit on file sizes gives an error as well.
  ASSERT_OK_AND_ASSIGN(const TempDir dir, TempDir::Create());
  ASSERT_OK_AND_ASSIGN(const auto file, RealFileSystem().CreateExclusive(dir.File("f")));
  EXPECT_OK(file->Append(AsBytes("abc")));
  // Puts a full device under the file's descriptor.
  ASSERT_OK_AND_ASSIGN(const std::vector<DirEntry> fds, RealFileSystem().List("/proc/self/fd"));
  int fd = -1;
  for (const DirEntry& e : fds) {
    char target[4096] = {};
    if (readlink(("/proc/self/fd/" + e.name).c_str(), target, sizeof(target) - 1) > 0 &&
        dir.File("f") == target) {
      fd = std::stoi(e.name);
    }
  }
  ASSERT_GE(fd, 0);
  const int saved = dup(fd);
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_EQ(dup2(full, fd), fd);
  EXPECT_THAT(file->Append(AsBytes("def")),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr(dir.File("f"))));
  ASSERT_EQ(dup2(saved, fd), fd);
  close(saved);
  close(full);
  EXPECT_EQ(file->offset(), 3u);
  EXPECT_THAT(file->Append(AsBytes("def")), StatusIs(StatusCode::kResourceExhausted));
  EXPECT_THAT(file->Sync(), StatusIs(StatusCode::kResourceExhausted));
}

// Runs `operation` once to count its calls, then with a crash at each of them, and hands every
// image that the crash may leave to `check`.
void AtEveryCrash(const std::function<Status(FileSystem&)>& operation,
                  const std::function<void(FileSystem&, bool done)>& check) {
  uint64_t calls;
  {
    MemoryFileSystem memory;
    FaultFileSystem fault(memory);
    ASSERT_OK(operation(fault));
    calls = fault.calls();
  }
  for (uint64_t n = 1; n <= calls + 1; ++n) {  // the last: a crash behind the operation
    MemoryFileSystem memory;
    FaultFileSystem fault(memory);
    fault.CrashAt(n);
    const Status status = operation(fault);
    if (n > calls) {
      ASSERT_OK(status);
    }
    for (uint64_t seed = 0; seed < 40; ++seed) {
      SCOPED_TRACE("crash at call " + std::to_string(n) + ", image " + std::to_string(seed));
      check(*memory.CrashImage(seed), status.ok());
    }
  }
}

TEST(WriteFileTest, AtomicNeverShowsPartOfAFileAndKeepsItOnceItSaidOk) {
  const std::string text(5000, 'x');
  AtEveryCrash([&](FileSystem& fs) { return WriteFileAtomic(fs, "/f.tmp", "/f", AsBytes(text)); },
               [&](FileSystem& fs, bool done) {
                 const Result<std::string> got = fs.ReadFile("/f", 1 << 20);
                 if (got.ok()) {
                   EXPECT_EQ(*got, text);
                 } else {
                   EXPECT_THAT(got, StatusIs(StatusCode::kNotFound));
                   EXPECT_FALSE(done);
                 }
               });
}

TEST(WriteFileTest, ExclusiveSurvivesACrashOnceItSaidOk) {
  const std::string text(5000, 'x');
  AtEveryCrash(
      [&](FileSystem& fs) {
        return WriteFileExclusive(fs, "/f", AsBytes(text), Durability::kFileAndName);
      },
      [&](FileSystem& fs, bool done) {
        if (done) {
          EXPECT_THAT(fs.ReadFile("/f", 1 << 20), IsOkAndHolds(text));
        }
      });
}

TEST(WriteFileTest, CreateDirsIsDurableOnceItSaidOk) {
  AtEveryCrash([](FileSystem& fs) { return fs.CreateDirs("/a/b/c"); },
               [](FileSystem& fs, bool done) {
                 if (done) {
                   EXPECT_OK(fs.Stat("/a/b/c"));
                 }
               });
}

TEST(WriteFileTest, AFailureRemovesTheFileAndReportsTheFirstError) {
  for (uint64_t n = 2; n <= 5; ++n) {  // append, sync, close, sync of the directory
    MemoryFileSystem memory;
    FaultFileSystem fault(memory);
    fault.FailAt(n, EIO);
    EXPECT_THAT(WriteFileExclusive(fault, "/f", AsBytes("abc"), Durability::kFileAndName),
                StatusIs(StatusCode::kUnknown));
    EXPECT_THAT(memory.Stat("/f"), StatusIs(StatusCode::kNotFound)) << n;
  }
}

}  // namespace
}  // namespace godwit
