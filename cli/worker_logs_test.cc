#include "cli/worker_logs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/memory_file_system.h"
#include "base/testing/matchers.h"

namespace godwit::cli {
namespace {

using ::godwit::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class WorkerLogsTest : public ::testing::Test {
 protected:
  std::unique_ptr<WritableFile> Create(const std::string& path) {
    EXPECT_THAT(fs_.CreateDirs(DirName(path)), IsOk());
    auto file = fs_.CreateExclusive(path);
    EXPECT_TRUE(file.ok()) << file.status();
    return std::move(*file);
  }
  void Append(WritableFile& file, std::string_view text) {
    ASSERT_THAT(file.Append(AsBytes(text)), IsOk());
  }
  std::vector<std::string> Poll(LogReader& reader, bool at_end = false) {
    std::vector<std::string> lines;
    EXPECT_THAT(reader.Poll(at_end,
                            [&](const LogReader::Line& line) {
                              lines.push_back("a" + std::to_string(line.log->attempt) + "e" +
                                              std::to_string(line.log->epoch) + "r" +
                                              std::to_string(line.log->rank) + " " +
                                              std::string(line.text));
                            }),
                IsOk());
    return lines;
  }
  MemoryFileSystem fs_;
};

TEST_F(WorkerLogsTest, FindsTheFilesInTheOrderOfAttemptEpochAndRank) {
  Create("/job/a10/node-0/workers/e1-r0.out");
  Create("/job/a2/node-1/workers/e1-r1.out");
  Create("/job/a2/node-0/workers/e2-r0.out");
  Create("/job/a2/node-0/workers/e1-r0.err");
  Create("/job/a2/node-0/workers/e1-r0.out");
  Create("/job/a2/node-0/workers/notes.txt");
  Create("/job/a2/master/journal");
  Create("/job/b2/node-0/workers/e1-r0.out");
  auto logs = FindWorkerLogs(fs_, "/job", {});
  ASSERT_TRUE(logs.ok()) << logs.status();
  std::vector<std::string> paths;
  for (const WorkerLog& log : *logs) paths.push_back(log.path);
  EXPECT_THAT(paths,
              ElementsAre("/job/a2/node-0/workers/e1-r0.out", "/job/a2/node-0/workers/e1-r0.err",
                          "/job/a2/node-1/workers/e1-r1.out", "/job/a2/node-0/workers/e2-r0.out",
                          "/job/a10/node-0/workers/e1-r0.out"));
}

TEST_F(WorkerLogsTest, TheFilterChoosesRankAttemptAndStream) {
  Create("/job/a1/node-0/workers/e1-r0.out");
  Create("/job/a1/node-1/workers/e1-r1.out");
  Create("/job/a2/node-0/workers/e1-r0.err");
  EXPECT_EQ(FindWorkerLogs(fs_, "/job", {.rank = 1})->size(), 1u);
  EXPECT_EQ(FindWorkerLogs(fs_, "/job", {.attempt = 1})->size(), 2u);
  EXPECT_EQ(FindWorkerLogs(fs_, "/job", {.out = false})->size(), 1u);
}

TEST_F(WorkerLogsTest, ADirectoryThatDoesNotExistYetHasNoLogs) {
  auto logs = FindWorkerLogs(fs_, "/nowhere", {});
  ASSERT_TRUE(logs.ok()) << logs.status();
  EXPECT_THAT(*logs, IsEmpty());
}

TEST_F(WorkerLogsTest, NamesThatAreNotOursAreRefused) {
  WorkerLog log;
  for (const char* name : {"", "e1-r0", "e1-r0.txt", "e-r0.out", "e1r0.out", "r0-e1.out",
                           "e1-r99999999999.out", "e+1-r0.out", "e1-r0.out.gz"}) {
    EXPECT_FALSE(ParseWorkerLogName(name, &log)) << name;
  }
  EXPECT_TRUE(ParseWorkerLogName("e12-r3.err", &log));
  EXPECT_EQ(log.epoch, 12u);
  EXPECT_EQ(log.rank, 3u);
  EXPECT_TRUE(log.is_stderr);
}

TEST_F(WorkerLogsTest, FollowingGivesEachWholeLineOnceAndTheRestAtTheEnd) {
  auto first = Create("/job/a1/node-0/workers/e1-r0.out");
  LogReader reader(fs_, "/job", {});
  EXPECT_THAT(Poll(reader), IsEmpty());
  Append(*first, "one\ntw");
  EXPECT_THAT(Poll(reader), ElementsAre("a1e1r0 one"));
  Append(*first, "o\n\nthree");
  EXPECT_THAT(Poll(reader), ElementsAre("a1e1r0 two", "a1e1r0 "));
  auto second = Create("/job/a1/node-0/workers/e2-r0.out");
  Append(*second, "again\n");
  EXPECT_THAT(Poll(reader), ElementsAre("a1e2r0 again"));
  EXPECT_THAT(Poll(reader, /*at_end=*/true), ElementsAre("a1e1r0 three"));
  EXPECT_THAT(Poll(reader, /*at_end=*/true), IsEmpty());
}

TEST_F(WorkerLogsTest, AnEndlessLineComesInPiecesAndLosesNothing) {
  auto file = Create("/job/a1/node-0/workers/e1-r0.out");
  const std::string long_line(3 * LogReader::kMaxLineBytes + 17, 'x');
  Append(*file, long_line + "\nend\n");
  LogReader reader(fs_, "/job", {});
  size_t bytes = 0;
  std::string last;
  ASSERT_THAT(reader.Poll(false,
                          [&](const LogReader::Line& line) {
                            EXPECT_LE(line.text.size(), 2 * LogReader::kMaxLineBytes);
                            if (line.text != "end") bytes += line.text.size();
                            last = line.text;
                          }),
              IsOk());
  EXPECT_EQ(bytes, long_line.size());
  EXPECT_EQ(last, "end");
}

}  // namespace
}  // namespace godwit::cli
