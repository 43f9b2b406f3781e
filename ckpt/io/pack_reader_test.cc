#include "ckpt/io/pack_reader.h"

#include <string>
#include <utility>
#include <vector>

#include "base/memory_file_system.h"
#include "base/testing/matchers.h"
#include "ckpt/io/chunk_reader.h"
#include "ckpt/testing/toy_rank.h"

namespace godwit::ckpt {
namespace {

using ::godwit::testing::IsOk;
using ::godwit::testing::StatusIs;
using ::testing::HasSubstr;

// A file whose digests all fit, but whose index or frames are not what the plan allows.
class HostilePackTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(OpenCheckpointDir(fs_, "/c", true));
    ASSERT_OK(BeginTerm(fs_, "/c", "job", 1));
    testing::ToyJob job(1, 1, 1, 0);
    ASSERT_OK(job.Stage(1));
    ASSERT_OK(job.Save(fs_, "/c", save_));
    path_ = PackPath("/c", save_, 0);
    ASSERT_OK_AND_ASSIGN(const PackTail tail, ReadPackTail(fs_, path_));
    tail_ = tail;
    ASSERT_OK_AND_ASSIGN(auto reader, PackReader::Open(fs_, path_, tail_));
    index_ = reader->index();
    ASSERT_OK_AND_ASSIGN(file_, fs_.ReadFile(path_, 1 << 30));
  }
  // With another index, all digests made to fit.
  Status OpenWith(const std::vector<PackIndexEntry>& index) {
    const std::string bytes = EncodePackIndex(index);
    PackTail tail = tail_;
    tail.index_digest = DigestOf(AsBytes(bytes));
    tail.chunks = index.size();
    tail.file_bytes = tail.index_offset + bytes.size() + kPackTailBytes;
    std::string file = file_.substr(0, tail.index_offset) + bytes + EncodePackTail(tail);
    static_cast<void>(fs_.Unlink("/hostile"));
    GODWIT_RETURN_IF_ERROR(WriteFileExclusive(fs_, "/hostile", AsBytes(file), Durability::kNone));
    GODWIT_ASSIGN_OR_RETURN(auto reader, PackReader::Open(fs_, "/hostile", tail));
    ChunkReader chunks(fs_, PacksOf("/c"));
    std::string raw;
    for (const PackIndexEntry& e : reader->index()) {
      GODWIT_RETURN_IF_ERROR(chunks.Read(*reader, e.chunk, raw));
    }
    return OkStatus();
  }

  MemoryFileSystem fs_;
  const SaveId save_{1, 1, 1};
  std::string path_;
  PackTail tail_;
  std::vector<PackIndexEntry> index_;
  std::string file_;
};

TEST_F(HostilePackTest, AnIndexThatThePlanDoesNotAllowIsRefused) {
  ASSERT_OK(OpenWith(index_));
  ASSERT_GE(index_.size(), 3u);
  for (size_t i = 0; i < index_.size(); ++i) {
    for (uint64_t value : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 40, ~uint64_t{0}}) {
      for (auto field : {&PackIndexEntry::chunk, &PackIndexEntry::raw_bytes,
                         &PackIndexEntry::frame_offset, &PackIndexEntry::frame_bytes}) {
        auto bad = index_;
        if (bad[i].*field == value) continue;
        bad[i].*field = value;
        EXPECT_THAT(OpenWith(bad), StatusIs(StatusCode::kDataLoss, HasSubstr("/hostile")))
            << i << " " << value;
      }
    }
  }
  auto fewer = index_;
  fewer.pop_back();
  EXPECT_THAT(OpenWith(fewer), StatusIs(StatusCode::kDataLoss));
  auto twice = index_;
  twice[1] = twice[0];
  EXPECT_THAT(OpenWith(twice), StatusIs(StatusCode::kDataLoss));
  auto swapped = index_;
  std::swap(swapped[0].digest, swapped[1].digest);
  EXPECT_THAT(OpenWith(swapped), StatusIs(StatusCode::kDataLoss, HasSubstr("digest")));
}

TEST_F(HostilePackTest, EveryCutOfAPackIsTorn) {
  for (uint64_t n = 0; n < file_.size(); n += 1 + n / 50) {
    static_cast<void>(fs_.Unlink("/cut"));
    ASSERT_OK(WriteFileExclusive(fs_, "/cut", AsBytes(file_).first(n), Durability::kNone));
    EXPECT_THAT(ReadPackTail(fs_, "/cut"), StatusIs(StatusCode::kDataLoss, HasSubstr("/cut")));
  }
}

}  // namespace
}  // namespace godwit::ckpt
