// Every promise of a save, at every call to the file system; and engines that are wrong on purpose,
// which must be found: a test of the test.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/testing/matchers.h"
#include "ckpt/testing/crash_harness.h"

namespace godwit::ckpt {
namespace {

using testing::CheckExclusive;
using testing::CrashBegin;
using testing::CrashReport;
using testing::CrashSave;
using testing::SaveKind;

std::string Shown(const CrashReport& report) {
  std::string out = std::to_string(report.violations.size()) + " broken promises in " +
                    std::to_string(report.cases) + " cases\n";
  for (size_t i = 0; i < report.violations.size() && i < 10; ++i) {
    out += "  " + report.violations[i] + "\n";
  }
  return out;
}

TEST(CrashTest, ASaveOfOneRankSurvivesEveryFaultAtEveryCall) {
  const CrashReport report = CrashSave(1, nullptr);
  EXPECT_TRUE(report.violations.empty()) << Shown(report);
  EXPECT_GT(report.cases, 300u);
}

TEST(CrashTest, ASaveOfThreeRanksSurvivesEveryFaultAtEveryCall) {
  const CrashReport report = CrashSave(3, nullptr);
  EXPECT_TRUE(report.violations.empty()) << Shown(report);
  EXPECT_GT(report.cases, 500u);
}

TEST(CrashTest, ASaveThatRefersToOthersSurvivesEveryFaultAtEveryCall) {
  for (uint32_t ranks : {1, 3}) {
    const CrashReport report = CrashSave(ranks, nullptr, SaveKind::kReferences);
    EXPECT_TRUE(report.violations.empty()) << ranks << " ranks: " << Shown(report);
  }
}

TEST(CrashTest, ASaveOfDifferencesSurvivesEveryFaultAtEveryCall) {
  for (uint32_t ranks : {1, 3}) {
    const CrashReport report = CrashSave(ranks, nullptr, SaveKind::kDeltas);
    EXPECT_TRUE(report.violations.empty()) << ranks << " ranks: " << Shown(report);
  }
}

TEST(CrashTest, TheFirstTermSurvivesEveryFaultAtEveryCall) {
  const CrashReport report = CrashBegin(nullptr);
  EXPECT_TRUE(report.violations.empty()) << Shown(report);
}

TEST(CrashTest, ANameThatIsTakenIsNeverReplaced) {
  const CrashReport report = CheckExclusive(nullptr);
  EXPECT_TRUE(report.violations.empty()) << Shown(report);
}

// ---- engines that are wrong on purpose ----

// Passes all on; each mutant changes one thing.
class Wrong : public FileSystem {
 public:
  explicit Wrong(FileSystem& target) : target_(target) {}
  Result<std::unique_ptr<WritableFile>> CreateExclusive(const std::string& path) override {
    return target_.CreateExclusive(path);
  }
  Result<std::unique_ptr<RandomAccessFile>> OpenRead(const std::string& path) override {
    return target_.OpenRead(path);
  }
  Status Link(const std::string& from, const std::string& to) override {
    return target_.Link(from, to);
  }
  Status Rename(const std::string& from, const std::string& to) override {
    return target_.Rename(from, to);
  }
  Status Unlink(const std::string& path) override { return target_.Unlink(path); }
  Status CreateDir(const std::string& path) override { return target_.CreateDir(path); }
  Status RemoveDir(const std::string& path) override { return target_.RemoveDir(path); }
  Result<std::vector<DirEntry>> List(const std::string& path) override {
    return target_.List(path);
  }
  Result<FileInfo> Stat(const std::string& path) override { return target_.Stat(path); }
  Status SyncDir(const std::string& path) override { return target_.SyncDir(path); }
  Result<SpaceInfo> Space(const std::string& path) override { return target_.Space(path); }

 protected:
  FileSystem& target_;
};

class NoDirectorySync : public Wrong {
 public:
  using Wrong::Wrong;
  Status SyncDir(const std::string&) override { return OkStatus(); }
};

// Only packs, manifests or terms: each directory's sync is needed.
class NoDirectorySyncOf : public Wrong {
 public:
  NoDirectorySyncOf(FileSystem& target, std::string part) : Wrong(target), part_(part) {}
  Status SyncDir(const std::string& path) override {
    return path.find(part_) != std::string::npos ? OkStatus() : target_.SyncDir(path);
  }

 private:
  const std::string part_;
};

class NotSyncedFile : public WritableFile {
 public:
  explicit NotSyncedFile(std::unique_ptr<WritableFile> file) : file_(std::move(file)) {}
  Status Append(ByteSpan bytes) override { return file_->Append(bytes); }
  Status Sync() override { return OkStatus(); }
  Status Close() override { return file_->Close(); }
  uint64_t offset() const override { return file_->offset(); }

 private:
  std::unique_ptr<WritableFile> file_;
};

class NoFileSync : public Wrong {
 public:
  NoFileSync(FileSystem& target, std::string part) : Wrong(target), part_(part) {}
  Result<std::unique_ptr<WritableFile>> CreateExclusive(const std::string& path) override {
    auto file = target_.CreateExclusive(path);
    if (!file.ok() || path.find(part_) == std::string::npos) return file;
    return std::unique_ptr<WritableFile>(new NotSyncedFile(std::move(*file)));
  }

 private:
  const std::string part_;
};

// Says that a pack is whole, durably, and only then makes its data durable.
class TailBeforeData : public Wrong {
 public:
  using Wrong::Wrong;

  struct Held {
    std::unique_ptr<WritableFile> file;
  };
  class LateFile : public WritableFile {
   public:
    LateFile(std::shared_ptr<Held> held) : held_(std::move(held)) {}
    Status Append(ByteSpan bytes) override { return held_->file->Append(bytes); }
    Status Sync() override { return OkStatus(); }
    Status Close() override { return OkStatus(); }
    uint64_t offset() const override { return held_->file->offset(); }

   private:
    std::shared_ptr<Held> held_;
  };
  Result<std::unique_ptr<WritableFile>> CreateExclusive(const std::string& path) override {
    auto file = target_.CreateExclusive(path);
    if (!file.ok() || path.find(".pack") == std::string::npos) return file;
    held_ = std::make_shared<Held>();
    held_->file = std::move(*file);
    return std::unique_ptr<WritableFile>(new LateFile(held_));
  }
  Status Link(const std::string& from, const std::string& to) override {
    GODWIT_RETURN_IF_ERROR(target_.Link(from, to));
    if (to.find(".pack") == std::string::npos) return OkStatus();
    GODWIT_RETURN_IF_ERROR(target_.SyncDir(DirName(to)));
    GODWIT_RETURN_IF_ERROR(held_->file->Sync());
    return held_->file->Close();
  }

 private:
  std::shared_ptr<Held> held_;
};

class RenameOver : public Wrong {
 public:
  using Wrong::Wrong;
  Status Link(const std::string& from, const std::string& to) override {
    return target_.Rename(from, to);
  }
  Status Unlink(const std::string& path) override {
    const Status s = target_.Unlink(path);
    return s.code() == StatusCode::kNotFound ? OkStatus() : s;
  }
};

// Retention doesn't learn what the saves that it keeps refer to.
class ForgetsBases : public Wrong {
 public:
  using Wrong::Wrong;
  Result<std::vector<DirEntry>> List(const std::string& path) override {
    if (path.find("/packs/t") != std::string::npos) return std::vector<DirEntry>();
    return target_.List(path);
  }
  // Its removal of a save goes by that list, too.
  Status RemoveDir(const std::string& path) override {
    GODWIT_ASSIGN_OR_RETURN(const auto entries, target_.List(path));
    for (const DirEntry& e : entries) {
      GODWIT_RETURN_IF_ERROR(target_.Unlink(JoinPath(path, e.name)));
    }
    return target_.RemoveDir(path);
  }
};

// Deletes packs first, and the manifests that speak of them when that is done.
class PacksBeforeManifests : public Wrong {
 public:
  using Wrong::Wrong;
  Status Unlink(const std::string& path) override {
    if (path.find("/manifests/t") == std::string::npos) return target_.Unlink(path);
    late_.push_back(path);
    return OkStatus();
  }
  Status SyncDir(const std::string& path) override {
    GODWIT_RETURN_IF_ERROR(target_.SyncDir(path));
    if (!path.ends_with("/packs")) return OkStatus();
    for (const std::string& manifest : std::exchange(late_, {})) {
      GODWIT_RETURN_IF_ERROR(target_.Unlink(manifest));
    }
    return OkStatus();
  }

 private:
  std::vector<std::string> late_;
};

template <typename T, typename... Args>
testing::Decorator Mutant(Args... args) {
  return [=](FileSystem& target) { return std::make_unique<T>(target, args...); };
}

TEST(MutantTest, WithoutADirectoryFsyncPromisesBreak) {
  EXPECT_FALSE(CrashSave(1, Mutant<NoDirectorySync>()).violations.empty());
  EXPECT_FALSE(CrashBegin(Mutant<NoDirectorySync>()).violations.empty());
}

TEST(MutantTest, EachDirectorysFsyncIsNeeded) {
  for (const char* part : {"/packs/t", "/manifests"}) {
    EXPECT_FALSE(CrashSave(1, Mutant<NoDirectorySyncOf>(std::string(part))).violations.empty())
        << part;
  }
  EXPECT_FALSE(CrashBegin(Mutant<NoDirectorySyncOf>(std::string("/terms"))).violations.empty());
}

TEST(MutantTest, WithoutAFileFsyncPromisesBreak) {
  for (const char* part : {".pack", "/manifests/"}) {
    EXPECT_FALSE(CrashSave(1, Mutant<NoFileSync>(std::string(part))).violations.empty()) << part;
  }
  EXPECT_FALSE(CrashBegin(Mutant<NoFileSync>(std::string("/terms/"))).violations.empty());
}

TEST(MutantTest, ATailBeforeItsDataBreaksPromises) {
  EXPECT_FALSE(CrashSave(1, Mutant<TailBeforeData>()).violations.empty());
}

TEST(MutantTest, RetentionThatForgetsBasesBreaksPromises) {
  EXPECT_FALSE(CrashSave(1, Mutant<ForgetsBases>(), SaveKind::kReferences).violations.empty());
  EXPECT_FALSE(CrashSave(1, Mutant<ForgetsBases>(), SaveKind::kDeltas).violations.empty());
}

TEST(MutantTest, DeletingPacksBeforeTheirManifestsBreaksPromises) {
  EXPECT_FALSE(CrashSave(1, Mutant<PacksBeforeManifests>()).violations.empty());
}

TEST(MutantTest, RenamingOverAnExistingNameBreaksPromises) {
  EXPECT_FALSE(CheckExclusive(Mutant<RenameOver>()).violations.empty());
}

}  // namespace
}  // namespace godwit::ckpt
