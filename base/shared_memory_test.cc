#include "base/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/testing/matchers.h"

namespace godwit {
namespace {

using ::godwit::testing::StatusIs;
using ::testing::HasSubstr;

constexpr uint64_t kSize = 1 << 20;

TEST(SharedMemoryTest, TwoMappingsShowTheSameBytes) {
  ASSERT_OK_AND_ASSIGN(UniqueFd fd, CreateSharedMemory("test", kSize));
  ASSERT_OK_AND_ASSIGN(const SharedMapping a, SharedMapping::Map(fd.get(), kSize));
  ASSERT_OK_AND_ASSIGN(const SharedMapping b, SharedMapping::Map(fd.get(), 0));
  fd.Reset();  // the mappings stay
  EXPECT_EQ(a.size(), kSize);
  EXPECT_EQ(b.bytes()[kSize - 1], std::byte(0));
  a.data()[kSize - 1] = std::byte(7);
  EXPECT_EQ(b.bytes()[kSize - 1], std::byte(7));
}

TEST(SharedMemoryTest, AllPagesAreTakenAtOnce) {
  ASSERT_OK_AND_ASSIGN(const UniqueFd fd, CreateSharedMemory("test", kSize));
  struct stat st;
  ASSERT_EQ(fstat(fd.get(), &st), 0);
  EXPECT_GE(static_cast<uint64_t>(st.st_blocks) * 512, kSize);
}

TEST(SharedMemoryTest, IsCloseOnExecAndCannotBeResized) {
  ASSERT_OK_AND_ASSIGN(const UniqueFd fd, CreateSharedMemory("test", kSize));
  EXPECT_TRUE(fcntl(fd.get(), F_GETFD) & FD_CLOEXEC);
  EXPECT_EQ(ftruncate(fd.get(), kSize / 2), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(ftruncate(fd.get(), kSize * 2), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST(SharedMemoryTest, MemoryThatCouldShrinkIsRefused) {
  ASSERT_OK_AND_ASSIGN(const UniqueFd fd,
                       CreateSharedMemory("test", kSize, {.allocate = false, .seal = false}));
  EXPECT_THAT(SharedMapping::Map(fd.get(), kSize), StatusIs(StatusCode::kFailedPrecondition));
  EXPECT_OK(SharedMapping::Map(fd.get(), kSize, {.require_sealed = false}));
  EXPECT_THAT(SharedMapping::Map(0, 0), StatusIs(StatusCode::kFailedPrecondition));
}

TEST(SharedMemoryTest, AnotherSizeThanExpectedIsRefused) {
  ASSERT_OK_AND_ASSIGN(const UniqueFd fd, CreateSharedMemory("test", kSize));
  EXPECT_THAT(SharedMapping::Map(fd.get(), kSize + 1),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("allowed: 1048577")));
}

TEST(SharedMemoryTest, AReadOnlyDescriptorCannotBeMappedForWriting) {
  ASSERT_OK_AND_ASSIGN(const UniqueFd fd, CreateSharedMemory("test", kSize));
  ASSERT_OK_AND_ASSIGN(const UniqueFd read_only, ReopenReadOnly(fd.get()));
  EXPECT_THAT(SharedMapping::Map(read_only.get(), kSize), StatusIs(StatusCode::kPermissionDenied));
  ASSERT_OK_AND_ASSIGN(
      const SharedMapping view,
      SharedMapping::Map(read_only.get(), kSize, {.protection = Protection::kRead}));
  EXPECT_EQ(mprotect(view.data(), kSize, PROT_READ | PROT_WRITE), -1);
  ASSERT_OK_AND_ASSIGN(const SharedMapping writer, SharedMapping::Map(fd.get(), kSize));
  writer.data()[0] = std::byte(9);
  EXPECT_EQ(view.data()[0], std::byte(9));
}

// Whether a forked child has the page at `data`.
bool ChildSees(const std::byte* data) {
  const pid_t pid = fork();
  if (pid == 0) {
    unsigned char vec;
    _exit(mincore(const_cast<std::byte*>(data), 1, &vec) == 0 ? 1 : 0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status) == 1;
}

TEST(SharedMemoryTest, AForkedChildHasTheMappingOnlyWhenAllowed) {
  ASSERT_OK_AND_ASSIGN(const UniqueFd fd, CreateSharedMemory("test", kSize));
  ASSERT_OK_AND_ASSIGN(const SharedMapping hidden, SharedMapping::Map(fd.get(), kSize));
  ASSERT_OK_AND_ASSIGN(const SharedMapping shown,
                       SharedMapping::Map(fd.get(), kSize, {.dont_fork = false}));
  EXPECT_FALSE(ChildSees(hidden.data()));
  EXPECT_TRUE(ChildSees(shown.data()));
}

TEST(SharedMemoryTest, MoreThanThereIsIsRefusedBeforeItIsTaken) {
  ASSERT_OK_AND_ASSIGN(const uint64_t available, AvailableMemoryBytes());
  EXPECT_GT(available, kSize);
  EXPECT_THAT(CreateSharedMemory("big", uint64_t{1} << 50),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("1 PiB wanted")));
  EXPECT_THAT(CreateSharedMemory("empty", 0), StatusIs(StatusCode::kInvalidArgument));
}

TEST(SharedMemoryTest, AMovedFromMappingIsEmpty) {
  ASSERT_OK_AND_ASSIGN(const UniqueFd fd, CreateSharedMemory("test", kSize));
  ASSERT_OK_AND_ASSIGN(SharedMapping a, SharedMapping::Map(fd.get(), kSize));
  SharedMapping b = std::move(a);
  EXPECT_TRUE(b.valid());
  EXPECT_FALSE(a.valid());  // NOLINT(bugprone-use-after-move): that's the point
  a = std::move(b);
  EXPECT_TRUE(a.valid());
}

}  // namespace
}  // namespace godwit
