#include "base/fault_file_system.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/mutex.h"

namespace godwit {

namespace {
constexpr std::string_view kCrash = "simulated crash";

struct Rule {
  int error = 0;
  uint64_t bytes = 0;  // an Append writes these before it fails
};

struct Verdict {
  Status status;       // OK: the call goes through
  uint64_t bytes = 0;  // an Append writes these before it fails
};
}  // namespace

const char* FileOpName(FileOp op) {
  switch (op) {
    case FileOp::kCreateExclusive:
      return "create";
    case FileOp::kOpenRead:
      return "open";
    case FileOp::kLink:
      return "link";
    case FileOp::kRename:
      return "rename";
    case FileOp::kUnlink:
      return "unlink";
    case FileOp::kCreateDir:
      return "mkdir";
    case FileOp::kRemoveDir:
      return "rmdir";
    case FileOp::kList:
      return "list";
    case FileOp::kStat:
      return "stat";
    case FileOp::kSyncDir:
      return "fsync directory";
    case FileOp::kSpace:
      return "statvfs";
    case FileOp::kAppend:
      return "write";
    case FileOp::kSync:
      return "fsync";
    case FileOp::kClose:
      return "close";
    case FileOp::kReadAt:
      return "read";
  }
  return "unknown";
}

struct FaultFileSystem::State {
  mutable Mutex mutex;
  std::vector<FileCall> log GUARDED_BY(mutex);
  std::map<uint64_t, Rule> rules GUARDED_BY(mutex);
  uint64_t crash_at GUARDED_BY(mutex) = 0;  // 0: never
  bool crashed GUARDED_BY(mutex) = false;
  std::function<int(const FileCall&)> hook GUARDED_BY(mutex);

  // Counts a call and says what becomes of it. `size`: of an Append.
  Verdict Arrive(FileOp op, const std::string& path, uint64_t size = 0) {
    const std::string what = std::string(FileOpName(op)) + "(" + path + ")";
    FileCall call;
    std::function<int(const FileCall&)> ask;
    {
      MutexLock lock(mutex);
      call = {.number = log.size() + 1, .op = op, .path = path};
      log.push_back(call);
      if (crashed) return {UnavailableError(what + ": " + std::string(kCrash)), 0};
      if (call.number == crash_at) {
        crashed = true;
        return {UnavailableError(what + ": " + std::string(kCrash)), size / 2};
      }
      if (const auto rule = rules.find(call.number); rule != rules.end()) {
        return {ErrnoError(rule->second.error, what), rule->second.bytes};
      }
      ask = hook;
    }
    if (const int error = ask ? ask(call) : 0; error != 0) return {ErrnoError(error, what), 0};
    return {};
  }
};

namespace {

class FaultWritableFile final : public WritableFile {
 public:
  FaultWritableFile(std::shared_ptr<FaultFileSystem::State> state, std::string path,
                    std::unique_ptr<WritableFile> target)
      : state_(std::move(state)), path_(std::move(path)), target_(std::move(target)) {}

  Status Append(ByteSpan bytes) override {
    const Verdict verdict = state_->Arrive(FileOp::kAppend, path_, bytes.size());
    GODWIT_RETURN_IF_ERROR(broken_);
    if (verdict.status.ok()) return target_->Append(bytes);
    broken_ = verdict.status;
    if (verdict.bytes > 0) {
      // Reports the fault asked for, unless the target has one of its own.
      GODWIT_RETURN_IF_ERROR(
          target_->Append(bytes.first(std::min<uint64_t>(verdict.bytes, bytes.size()))));
    }
    return broken_;
  }

  Status Sync() override {
    const Verdict verdict = state_->Arrive(FileOp::kSync, path_);
    GODWIT_RETURN_IF_ERROR(broken_);
    if (verdict.status.ok()) return target_->Sync();
    return broken_ = verdict.status;
  }

  Status Close() override {
    GODWIT_RETURN_IF_ERROR(state_->Arrive(FileOp::kClose, path_).status);
    return target_->Close();
  }

  uint64_t offset() const override { return target_->offset(); }

 private:
  const std::shared_ptr<FaultFileSystem::State> state_;
  const std::string path_;
  const std::unique_ptr<WritableFile> target_;
  Status broken_;
};

class FaultRandomAccessFile final : public RandomAccessFile {
 public:
  FaultRandomAccessFile(std::shared_ptr<FaultFileSystem::State> state, std::string path,
                        std::unique_ptr<RandomAccessFile> target)
      : state_(std::move(state)), path_(std::move(path)), target_(std::move(target)) {}

  Result<size_t> ReadAt(uint64_t offset, MutableByteSpan out) const override {
    GODWIT_RETURN_IF_ERROR(state_->Arrive(FileOp::kReadAt, path_).status);
    return target_->ReadAt(offset, out);
  }

  uint64_t size() const override { return target_->size(); }

 private:
  const std::shared_ptr<FaultFileSystem::State> state_;
  const std::string path_;
  const std::unique_ptr<RandomAccessFile> target_;
};

}  // namespace

FaultFileSystem::FaultFileSystem(FileSystem& target)
    : target_(target), state_(std::make_shared<State>()) {}

FaultFileSystem::~FaultFileSystem() = default;

uint64_t FaultFileSystem::calls() const {
  MutexLock lock(state_->mutex);
  return state_->log.size();
}

std::vector<FileCall> FaultFileSystem::call_log() const {
  MutexLock lock(state_->mutex);
  return state_->log;
}

void FaultFileSystem::FailAt(uint64_t n, int error) { ShortWriteAt(n, 0, error); }

void FaultFileSystem::ShortWriteAt(uint64_t n, uint64_t bytes, int error) {
  MutexLock lock(state_->mutex);
  state_->rules[n] = {.error = error, .bytes = bytes};
}

void FaultFileSystem::CrashAt(uint64_t n) {
  MutexLock lock(state_->mutex);
  state_->crash_at = n;
}

void FaultFileSystem::SetHook(std::function<int(const FileCall&)> hook) {
  MutexLock lock(state_->mutex);
  state_->hook = std::move(hook);
}

bool FaultFileSystem::crashed() const {
  MutexLock lock(state_->mutex);
  return state_->crashed;
}

bool FaultFileSystem::IsSimulatedCrash(const Status& status) {
  return status.code() == StatusCode::kUnavailable &&
         status.message().find(kCrash) != std::string::npos;
}

Result<std::unique_ptr<WritableFile>> FaultFileSystem::CreateExclusive(const std::string& path) {
  GODWIT_RETURN_IF_ERROR(state_->Arrive(FileOp::kCreateExclusive, path).status);
  GODWIT_ASSIGN_OR_RETURN(auto file, target_.CreateExclusive(path));
  return std::unique_ptr<WritableFile>(
      std::make_unique<FaultWritableFile>(state_, path, std::move(file)));
}

Result<std::unique_ptr<RandomAccessFile>> FaultFileSystem::OpenRead(const std::string& path) {
  GODWIT_RETURN_IF_ERROR(state_->Arrive(FileOp::kOpenRead, path).status);
  GODWIT_ASSIGN_OR_RETURN(auto file, target_.OpenRead(path));
  return std::unique_ptr<RandomAccessFile>(
      std::make_unique<FaultRandomAccessFile>(state_, path, std::move(file)));
}

Status FaultFileSystem::Link(const std::string& from, const std::string& to) {
  GODWIT_RETURN_IF_ERROR(state_->Arrive(FileOp::kLink, to).status);
  return target_.Link(from, to);
}

Status FaultFileSystem::Rename(const std::string& from, const std::string& to) {
  GODWIT_RETURN_IF_ERROR(state_->Arrive(FileOp::kRename, to).status);
  return target_.Rename(from, to);
}

Status FaultFileSystem::Unlink(const std::string& path) {
  GODWIT_RETURN_IF_ERROR(state_->Arrive(FileOp::kUnlink, path).status);
  return target_.Unlink(path);
}

Status FaultFileSystem::CreateDir(const std::string& path) {
  GODWIT_RETURN_IF_ERROR(state_->Arrive(FileOp::kCreateDir, path).status);
  return target_.CreateDir(path);
}

Status FaultFileSystem::RemoveDir(const std::string& path) {
  GODWIT_RETURN_IF_ERROR(state_->Arrive(FileOp::kRemoveDir, path).status);
  return target_.RemoveDir(path);
}

Result<std::vector<DirEntry>> FaultFileSystem::List(const std::string& path) {
  GODWIT_RETURN_IF_ERROR(state_->Arrive(FileOp::kList, path).status);
  return target_.List(path);
}

Result<FileInfo> FaultFileSystem::Stat(const std::string& path) {
  GODWIT_RETURN_IF_ERROR(state_->Arrive(FileOp::kStat, path).status);
  return target_.Stat(path);
}

Status FaultFileSystem::SyncDir(const std::string& path) {
  GODWIT_RETURN_IF_ERROR(state_->Arrive(FileOp::kSyncDir, path).status);
  return target_.SyncDir(path);
}

Result<SpaceInfo> FaultFileSystem::Space(const std::string& path) {
  GODWIT_RETURN_IF_ERROR(state_->Arrive(FileOp::kSpace, path).status);
  return target_.Space(path);
}

}  // namespace godwit
