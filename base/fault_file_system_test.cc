#include "base/fault_file_system.h"

#include <cerrno>

#include "base/memory_file_system.h"
#include "base/testing/matchers.h"

namespace godwit {
namespace {

using ::godwit::testing::IsOkAndHolds;
using ::godwit::testing::StatusIs;
using ::testing::HasSubstr;

class FaultFileSystemTest : public ::testing::Test {
 protected:
  Status Write() {
    return WriteFileExclusive(fs_, "/f", AsBytes("0123456789"), Durability::kFileAndName);
  }
  MemoryFileSystem memory_;
  FaultFileSystem fs_{memory_};
};

TEST_F(FaultFileSystemTest, CountsAndNamesEveryCall) {
  ASSERT_OK(Write());
  std::string log;
  for (const FileCall& c : fs_.call_log()) {
    log += std::to_string(c.number) + " " + FileOpName(c.op) + " " + c.path + "\n";
  }
  EXPECT_EQ(log, "1 create /f\n2 write /f\n3 fsync /f\n4 close /f\n5 fsync directory /\n");
  EXPECT_EQ(fs_.calls(), 5u);
}

TEST_F(FaultFileSystemTest, TheNthCallFailsWithoutEffectAndTheNextWorks) {
  fs_.FailAt(1, EACCES);
  EXPECT_THAT(Write(), StatusIs(StatusCode::kPermissionDenied, HasSubstr("create(/f)")));
  EXPECT_THAT(memory_.Stat("/f"), StatusIs(StatusCode::kNotFound));
  EXPECT_OK(Write());
}

TEST_F(FaultFileSystemTest, AShortWriteLeavesItsPart) {
  fs_.ShortWriteAt(2, 4, ENOSPC);
  ASSERT_OK_AND_ASSIGN(const auto file, fs_.CreateExclusive("/f"));
  EXPECT_THAT(file->Append(AsBytes("0123456789")), StatusIs(StatusCode::kResourceExhausted));
  EXPECT_THAT(memory_.ReadFile("/f", 99), IsOkAndHolds("0123"));
  // As with a real file: unusable from now on.
  EXPECT_THAT(file->Append(AsBytes("x")), StatusIs(StatusCode::kResourceExhausted));
  EXPECT_THAT(file->Sync(), StatusIs(StatusCode::kResourceExhausted));
  EXPECT_THAT(memory_.ReadFile("/f", 99), IsOkAndHolds("0123"));
}

TEST_F(FaultFileSystemTest, AFailedSyncMakesTheFileUnusable) {
  fs_.FailAt(3, EIO);
  ASSERT_OK_AND_ASSIGN(const auto file, fs_.CreateExclusive("/f"));
  ASSERT_OK(file->Append(AsBytes("abc")));
  EXPECT_THAT(file->Sync(), StatusIs(StatusCode::kUnknown));
  EXPECT_THAT(file->Sync(), StatusIs(StatusCode::kUnknown));
  EXPECT_THAT(memory_.CrashImage(1)->ReadFile("/f", 9), IsOkAndHolds(""));
}

TEST_F(FaultFileSystemTest, AfterACrashNothingWorks) {
  fs_.CrashAt(2);
  const Status status = Write();
  EXPECT_TRUE(FaultFileSystem::IsSimulatedCrash(status)) << status;
  EXPECT_TRUE(FaultFileSystem::IsSimulatedCrash(status.Annotate("save")));
  EXPECT_FALSE(FaultFileSystem::IsSimulatedCrash(UnavailableError("x")));
  EXPECT_TRUE(fs_.crashed());
  // Half of the write, and no clean-up afterwards.
  EXPECT_THAT(memory_.ReadFile("/f", 99), IsOkAndHolds("01234"));
  EXPECT_TRUE(FaultFileSystem::IsSimulatedCrash(fs_.Unlink("/f")));
  EXPECT_TRUE(FaultFileSystem::IsSimulatedCrash(fs_.Stat("/f").status()));
  EXPECT_OK(memory_.Stat("/f"));
}

TEST_F(FaultFileSystemTest, TheHookSeesCallsAndMayFailThem) {
  int seen = 0;
  fs_.SetHook([&](const FileCall& call) {
    ++seen;
    EXPECT_EQ(fs_.calls(), call.number);  // may call back: no lock is held
    return call.op == FileOp::kSync ? EIO : 0;
  });
  EXPECT_THAT(Write(), StatusIs(StatusCode::kUnknown, HasSubstr("fsync(/f)")));
  EXPECT_EQ(seen, 4);  // create, write, fsync, unlink
  fs_.SetHook({});
  EXPECT_OK(Write());
}

TEST_F(FaultFileSystemTest, ReadsCountAndFailToo) {
  ASSERT_OK(Write());
  fs_.FailAt(7, EIO);
  ASSERT_OK_AND_ASSIGN(const auto file, fs_.OpenRead("/f"));
  std::byte buffer[3];
  EXPECT_THAT(file->ReadAt(0, buffer), StatusIs(StatusCode::kUnknown, HasSubstr("read(/f)")));
  EXPECT_OK(file->ReadFully(0, buffer));
}

}  // namespace
}  // namespace godwit
