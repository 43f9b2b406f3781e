#include "base/unix_socket.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/real_file_system.h"
#include "base/temp_dir.h"
#include "base/testing/matchers.h"
#include "base/thread.h"

namespace godwit {
namespace {

using ::godwit::testing::StatusIs;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

MonotonicTime Soon() { return MonotonicClock::now() + seconds(30); }  // against hangs

size_t OpenFds() { return RealFileSystem().List("/proc/self/fd").value().size(); }

class UnixSocketTest : public ::testing::Test {
 protected:
  const TempDir dir_ = TempDir::Create("godwit-sock").value();
};

TEST_F(UnixSocketTest, MessagesKeepTheirBounds) {
  const std::string path = dir_.File("s");
  ASSERT_OK_AND_ASSIGN(const UniqueFd listener, ListenUnix(path));
  ASSERT_OK_AND_ASSIGN(const UniqueFd client, ConnectUnix(path));
  ASSERT_OK_AND_ASSIGN(const UniqueFd server, AcceptUnix(listener.get(), Soon()));
  EXPECT_OK(SendMessage(client.get(), AsBytes("one")));
  EXPECT_OK(SendMessage(client.get(), AsBytes("two!")));
  ASSERT_OK_AND_ASSIGN(const ReceivedMessage one, RecvMessage(server.get(), 100, 0, Soon()));
  ASSERT_OK_AND_ASSIGN(const ReceivedMessage two, RecvMessage(server.get(), 100, 0, Soon()));
  EXPECT_EQ(one.bytes, "one");
  EXPECT_EQ(two.bytes, "two!");
}

TEST_F(UnixSocketTest, TheSocketsFileHasTheModeAsked) {
  const mode_t before = umask(0);
  const Result<UniqueFd> listener = ListenUnix(dir_.File("s"), 0600);
  umask(before);
  ASSERT_OK(listener);
  struct stat st;
  ASSERT_EQ(stat(dir_.File("s").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
}

TEST_F(UnixSocketTest, ATakenPathIsRefusedEvenWhenDead) {
  ASSERT_OK(ListenUnix(dir_.File("s")));  // closed at once
  EXPECT_THAT(ListenUnix(dir_.File("s")), StatusIs(StatusCode::kAlreadyExists));
}

TEST_F(UnixSocketTest, ALongPathWorks) {
  std::string deep = dir_.path();
  while (deep.size() < 300) deep += "/" + std::string(50, 'd');
  ASSERT_OK(RealFileSystem().CreateDirs(deep));
  const std::string path = deep + "/sock";
  ASSERT_OK_AND_ASSIGN(const UniqueFd listener, ListenUnix(path));
  ASSERT_OK(RealFileSystem().Stat(path));
  EXPECT_OK(ConnectUnix(path));
  EXPECT_THAT(ListenUnix(deep + "/" + std::string(150, 'n')),
              StatusIs(StatusCode::kInvalidArgument));
}

TEST_F(UnixSocketTest, ConnectSaysWhetherThePathIsMissingOrDead) {
  EXPECT_THAT(ConnectUnix(dir_.File("none")), StatusIs(StatusCode::kNotFound, HasSubstr("none")));
  ASSERT_OK(ListenUnix(dir_.File("dead")));
  EXPECT_THAT(ConnectUnix(dir_.File("dead")), StatusIs(StatusCode::kUnavailable));
  const MonotonicTime deadline = MonotonicClock::now() + milliseconds(3);
  EXPECT_THAT(ConnectUnix(dir_.File("none"), deadline), StatusIs(StatusCode::kNotFound));
  EXPECT_GE(MonotonicClock::now(), deadline);
}

TEST_F(UnixSocketTest, ConnectWaitsForAServerThatIsStarting) {
  const std::string path = dir_.File("s");
  Result<UniqueFd> client = UnavailableError("not yet");
  Thread connector("connector", [&](StopToken) { client = ConnectUnix(path, Soon()); });
  ASSERT_OK_AND_ASSIGN(const UniqueFd listener, ListenUnix(path));
  EXPECT_OK(AcceptUnix(listener.get(), Soon()));
  connector.Join();
  EXPECT_OK(client);
}

TEST_F(UnixSocketTest, NothingThereIsUnavailable) {
  ASSERT_OK_AND_ASSIGN(const UniqueFd listener, ListenUnix(dir_.File("s")));
  EXPECT_THAT(AcceptUnix(listener.get()), StatusIs(StatusCode::kUnavailable));
  ASSERT_OK_AND_ASSIGN(const auto pair, UnixSocketPair());
  EXPECT_THAT(RecvMessage(pair.first.get(), 10, 0), StatusIs(StatusCode::kUnavailable));
  const MonotonicTime deadline = MonotonicClock::now() + milliseconds(2);
  EXPECT_THAT(RecvMessage(pair.first.get(), 10, 0, deadline), StatusIs(StatusCode::kUnavailable));
  EXPECT_GE(MonotonicClock::now(), deadline);
}

TEST_F(UnixSocketTest, AFullBufferIsUnavailableUntilThePeerReads) {
  ASSERT_OK_AND_ASSIGN(const auto pair, UnixSocketPair());
  const std::string big(10000, 'x');
  Status status;
  int sent = 0;
  while ((status = SendMessage(pair.first.get(), AsBytes(big))).ok()) {
    ASSERT_LT(++sent, 100000);
  }
  EXPECT_THAT(status, StatusIs(StatusCode::kUnavailable));
  Thread reader("reader", [&](StopToken) {
    for (int i = 0; i <= sent; ++i) EXPECT_OK(RecvMessage(pair.second.get(), 10000, 0, Soon()));
  });
  EXPECT_OK(SendMessage(pair.first.get(), AsBytes(big), {}, Soon()));
}

TEST_F(UnixSocketTest, APeerThatHasGoneIsAborted) {
  ASSERT_OK_AND_ASSIGN(auto pair, UnixSocketPair());
  EXPECT_OK(SendMessage(pair.second.get(), AsBytes("last")));
  pair.second.Reset();
  EXPECT_OK(RecvMessage(pair.first.get(), 10, 0));  // what it said before is still read
  EXPECT_THAT(RecvMessage(pair.first.get(), 10, 0, Soon()), StatusIs(StatusCode::kAborted));
  EXPECT_THAT(SendMessage(pair.first.get(), AsBytes("x")), StatusIs(StatusCode::kAborted));
}

TEST_F(UnixSocketTest, DescriptorsArePassedCloseOnExec) {
  ASSERT_OK_AND_ASSIGN(const auto pair, UnixSocketPair());
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd in(ends[0]);
  UniqueFd out(ends[1]);
  const int fds[] = {out.get()};
  ASSERT_OK(SendMessage(pair.first.get(), AsBytes("fd"), fds));
  out.Reset();
  {
    ASSERT_OK_AND_ASSIGN(const ReceivedMessage m, RecvMessage(pair.second.get(), 10, 1));
    ASSERT_EQ(m.fds.size(), 1u);
    EXPECT_TRUE(fcntl(m.fds[0].get(), F_GETFD) & FD_CLOEXEC);
    EXPECT_EQ(write(m.fds[0].get(), "x", 1), 1);
  }
  char c;
  EXPECT_EQ(read(in.get(), &c, 1), 1);
  EXPECT_EQ(read(in.get(), &c, 1), 0);  // all copies are closed
}

TEST_F(UnixSocketTest, TooLargeOrTooManyDescriptorsAreThrownAwayAndNothingLeaks) {
  ASSERT_OK_AND_ASSIGN(const auto pair, UnixSocketPair());
  const int fds[] = {0, 0, 0};
  const size_t before = OpenFds();
  ASSERT_OK(SendMessage(pair.first.get(), AsBytes("0123456789"), fds));
  ASSERT_OK(SendMessage(pair.first.get(), AsBytes("few"), fds));
  ASSERT_OK(SendMessage(pair.first.get(), AsBytes("good"), std::span(fds, 1)));
  EXPECT_THAT(RecvMessage(pair.second.get(), 9, 3),
              StatusIs(StatusCode::kOutOfRange, HasSubstr("10 bytes, allowed: 9")));
  EXPECT_THAT(RecvMessage(pair.second.get(), 9, 2),
              StatusIs(StatusCode::kOutOfRange, HasSubstr("3 descriptors, allowed: 2")));
  EXPECT_EQ(OpenFds(), before);
  ASSERT_OK_AND_ASSIGN(const ReceivedMessage m, RecvMessage(pair.second.get(), 9, 1));
  EXPECT_EQ(m.bytes, "good");
}

TEST_F(UnixSocketTest, TheMostDescriptorsThatTheKernelPassesFit) {
  ASSERT_OK_AND_ASSIGN(const auto pair, UnixSocketPair());
  const std::vector<int> fds(253, 0);
  ASSERT_OK(SendMessage(pair.first.get(), AsBytes("x"), fds));
  ASSERT_OK_AND_ASSIGN(const ReceivedMessage m, RecvMessage(pair.second.get(), 9, 253));
  EXPECT_EQ(m.fds.size(), 253u);
  EXPECT_THAT(SendMessage(pair.first.get(), AsBytes("x"), std::vector<int>(254, 0)),
              StatusIs(StatusCode::kInvalidArgument));
}

TEST_F(UnixSocketTest, WhatCannotBeSentIsRefused) {
  ASSERT_OK_AND_ASSIGN(const auto pair, UnixSocketPair());
  EXPECT_THAT(SendMessage(pair.first.get(), {}), StatusIs(StatusCode::kInvalidArgument));
  const std::string huge(64 << 20, 'x');
  EXPECT_THAT(SendMessage(pair.first.get(), AsBytes(huge)), StatusIs(StatusCode::kOutOfRange));
}

TEST_F(UnixSocketTest, PeerCredentialsAreTheOtherProcesss) {
  ASSERT_OK_AND_ASSIGN(const auto pair, UnixSocketPair());
  ASSERT_OK_AND_ASSIGN(const PeerCred cred, PeerCredentials(pair.first.get()));
  EXPECT_EQ(cred.pid, getpid());
  EXPECT_EQ(cred.uid, getuid());
  EXPECT_EQ(cred.gid, getgid());
  EXPECT_FALSE(PeerCredentials(0).ok());
}

}  // namespace
}  // namespace godwit
