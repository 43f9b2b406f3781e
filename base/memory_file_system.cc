#include "base/memory_file_system.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/mutex.h"
#include "base/random.h"

namespace godwit {

namespace {

struct Node;
using NodePtr = std::shared_ptr<Node>;
using Entries = std::map<std::string, NodePtr>;

struct Node {
  explicit Node(bool dir) : is_dir(dir) {}
  const bool is_dir;
  Duration modified_unix{0};
  // A file's: the first `synced` bytes survive a crash.
  std::string data;
  size_t synced = 0;
  // A directory's: as it is, and as its last SyncDir left it.
  Entries entries;
  Entries durable;
};

// An entry of a directory was set (or, with a null node, removed).
struct Change {
  NodePtr dir;
  std::string name;
  NodePtr node;
};
// What survives a crash as a whole or not at all.
using Transaction = std::vector<Change>;

void Apply(Entries& entries, const Change& change) {
  if (change.node == nullptr) {
    entries.erase(change.name);
  } else {
    entries[change.name] = change.node;
  }
}

constexpr uint64_t kLoseAll = 0;
constexpr uint64_t kKeepNames = 1;
constexpr uint64_t kKeepNamesAndLengths = 2;
constexpr uint64_t kKeepAll = 3;
constexpr size_t kSector = 512;

// What a crash leaves of a file whose first `synced` bytes are safe.
std::string CrashedData(const Node& file, uint64_t seed, Random& random) {
  std::string data = file.data.substr(0, file.synced);
  const std::string_view tail = std::string_view(file.data).substr(file.synced);
  if (tail.empty() || seed == kLoseAll || seed == kKeepNames) return data;
  if (seed == kKeepNamesAndLengths) return data.append(tail.size(), '\0');
  if (seed == kKeepAll) return data.append(tail);
  switch (random.Below(4)) {
    case 0:
      return data;
    case 1:
      return data.append(tail.substr(0, random.Below(tail.size() + 1)));
    case 2:
      return data.append(tail.size(), '\0');
    default:
      for (size_t i = 0; i < tail.size(); i += kSector) {
        const std::string_view sector = tail.substr(i, kSector);
        if (random.OneIn(2)) {
          data.append(sector);
        } else {
          data.append(sector.size(), '\0');
        }
      }
      return data;
  }
}

}  // namespace

struct MemoryFileSystem::State {
  State(uint64_t capacity_bytes, const Clock& time_source)
      : clock(time_source), capacity(capacity_bytes), root(std::make_shared<Node>(true)) {}

  const Clock& clock;
  mutable Mutex mutex;
  uint64_t capacity GUARDED_BY(mutex);
  // At least the bytes in all files; made exact when it matters.
  uint64_t used_bound GUARDED_BY(mutex) = 0;
  NodePtr root GUARDED_BY(mutex);
  // In order of time, what no SyncDir has made durable.
  std::vector<Transaction> pending GUARDED_BY(mutex);
  // Counts crashes; a file that was opened before the last one is dead.
  uint64_t incarnation GUARDED_BY(mutex) = 0;

  struct Place {
    NodePtr dir;
    std::string name;  // empty: the root itself
    NodePtr node;      // null: nothing has that name
  };

  Result<Place> Find(std::string_view call, const std::string& path) const REQUIRES_LOCK(mutex);
  // The node at `path`; NOT_FOUND without one.
  Result<NodePtr> Get(std::string_view call, const std::string& path) const REQUIRES_LOCK(mutex);
  void Commit(Transaction transaction) REQUIRES_LOCK(mutex);
  uint64_t UsedBytes() const REQUIRES_LOCK(mutex);
  std::shared_ptr<State> CrashImage(uint64_t seed) const REQUIRES_LOCK(mutex);
};

namespace {

Status Error(int error, std::string_view call, std::string_view path) {
  return ErrnoError(error, std::string(call) + "(" + std::string(path) + ")");
}

uint64_t CountBytes(const Node& dir, std::unordered_set<const Node*>& seen) {
  uint64_t bytes = 0;
  for (const auto& [name, node] : dir.entries) {
    if (!seen.insert(node.get()).second) continue;
    bytes += node->is_dir ? CountBytes(*node, seen) : node->data.size();
  }
  return bytes;
}

bool IsWithin(const Node& dir, const Node* wanted) {
  if (&dir == wanted) return true;
  return std::any_of(dir.entries.begin(), dir.entries.end(), [&](const auto& entry) {
    return entry.second->is_dir && IsWithin(*entry.second, wanted);
  });
}

class MemoryWritableFile final : public WritableFile {
 public:
  MemoryWritableFile(std::shared_ptr<MemoryFileSystem::State> state, std::string path, NodePtr node,
                     uint64_t incarnation)
      : state_(std::move(state)),
        path_(std::move(path)),
        node_(std::move(node)),
        incarnation_(incarnation) {}

  Status Append(ByteSpan bytes) override {
    MutexLock lock(state_->mutex);
    GODWIT_RETURN_IF_ERROR(Usable("write"));
    if (state_->used_bound + bytes.size() > state_->capacity) {
      state_->used_bound = state_->UsedBytes();
    }
    const uint64_t room =
        state_->capacity - std::min<uint64_t>(state_->capacity, state_->used_bound);
    const size_t n = std::min<uint64_t>(room, bytes.size());
    node_->data.append(AsString(bytes.first(n)));
    node_->modified_unix = state_->clock.WallUnix();
    state_->used_bound += n;
    offset_ += n;
    if (n < bytes.size()) return broken_ = Error(ENOSPC, "write", path_);
    return OkStatus();
  }

  Status Sync() override {
    MutexLock lock(state_->mutex);
    GODWIT_RETURN_IF_ERROR(Usable("fsync"));
    node_->synced = node_->data.size();
    return OkStatus();
  }

  Status Close() override {
    MutexLock lock(state_->mutex);
    if (closed_) return OkStatus();
    closed_ = true;
    return Alive("close");
  }

  uint64_t offset() const override { return offset_; }

 private:
  Status Alive(std::string_view call) const REQUIRES_LOCK(state_->mutex) {
    if (incarnation_ == state_->incarnation) return OkStatus();
    return UnavailableError(std::string(call) + "(" + path_ + "): opened before a crash");
  }
  Status Usable(std::string_view call) const REQUIRES_LOCK(state_->mutex) {
    GODWIT_RETURN_IF_ERROR(broken_);
    if (closed_) return Error(EBADF, call, path_);
    return Alive(call);
  }

  const std::shared_ptr<MemoryFileSystem::State> state_;
  const std::string path_;
  const NodePtr node_;  // its fields are guarded by state_->mutex
  const uint64_t incarnation_;
  uint64_t offset_ = 0;
  bool closed_ = false;
  Status broken_;
};

class MemoryRandomAccessFile final : public RandomAccessFile {
 public:
  MemoryRandomAccessFile(std::shared_ptr<MemoryFileSystem::State> state, std::string path,
                         NodePtr node, uint64_t incarnation, uint64_t size)
      : state_(std::move(state)),
        path_(std::move(path)),
        node_(std::move(node)),
        incarnation_(incarnation),
        size_(size) {}

  Result<size_t> ReadAt(uint64_t offset, MutableByteSpan out) const override {
    MutexLock lock(state_->mutex);
    if (incarnation_ != state_->incarnation) {
      return UnavailableError("read(" + path_ + "): opened before a crash");
    }
    const uint64_t size = node_->data.size();
    if (offset >= size) return size_t{0};
    const size_t n = std::min<uint64_t>(out.size(), size - offset);
    std::copy_n(AsBytes(node_->data).begin() + static_cast<ptrdiff_t>(offset), n, out.begin());
    return n;
  }

  uint64_t size() const override { return size_; }

 private:
  const std::shared_ptr<MemoryFileSystem::State> state_;
  const std::string path_;
  const NodePtr node_;  // its fields are guarded by state_->mutex
  const uint64_t incarnation_;
  const uint64_t size_;
};

}  // namespace

Result<MemoryFileSystem::State::Place> MemoryFileSystem::State::Find(
    std::string_view call, const std::string& path) const {
  if (path.empty()) return Error(ENOENT, call, path);
  std::vector<std::string> names;
  for (size_t i = 0; i < path.size();) {
    const size_t end = std::min(path.find('/', i), path.size());
    const std::string name = path.substr(i, end - i);
    i = end + 1;
    if (name.empty() || name == ".") continue;
    if (name == "..") {
      if (!names.empty()) names.pop_back();
      continue;
    }
    if (name.size() > 255) return Error(ENAMETOOLONG, call, path);
    names.push_back(name);
  }
  Place place{.dir = root, .name = "", .node = root};
  for (const std::string& name : names) {
    if (place.node == nullptr) return Error(ENOENT, call, path);
    if (!place.node->is_dir) return Error(ENOTDIR, call, path);
    place.dir = place.node;
    place.name = name;
    const auto found = place.dir->entries.find(name);
    place.node = found == place.dir->entries.end() ? nullptr : found->second;
  }
  return place;
}

Result<NodePtr> MemoryFileSystem::State::Get(std::string_view call, const std::string& path) const {
  GODWIT_ASSIGN_OR_RETURN(Place place, Find(call, path));
  if (place.node == nullptr) return Error(ENOENT, call, path);
  return std::move(place.node);
}

void MemoryFileSystem::State::Commit(Transaction transaction) {
  for (const Change& change : transaction) {
    Apply(change.dir->entries, change);
    change.dir->modified_unix = clock.WallUnix();
  }
  pending.push_back(std::move(transaction));
}

uint64_t MemoryFileSystem::State::UsedBytes() const {
  std::unordered_set<const Node*> seen;
  return CountBytes(*root, seen);
}

std::shared_ptr<MemoryFileSystem::State> MemoryFileSystem::State::CrashImage(uint64_t seed) const {
  Random random(seed);
  // The entries of the directories that pending changes touch.
  std::unordered_map<const Node*, Entries> changed;
  for (const Transaction& transaction : pending) {
    const bool survives = seed == kLoseAll ? false : seed <= kKeepAll ? true : random.OneIn(2);
    if (!survives) continue;
    for (const Change& change : transaction) {
      Apply(changed.try_emplace(change.dir.get(), change.dir->durable).first->second, change);
    }
  }

  auto image = std::make_shared<State>(capacity, clock);
  MutexLock lock(image->mutex);
  image->incarnation = incarnation + 1;
  std::unordered_map<const Node*, NodePtr> copies;
  copies[root.get()] = image->root;
  std::vector<std::pair<const Node*, NodePtr>> todo = {{root.get(), image->root}};
  while (!todo.empty()) {
    const auto [from, to] = todo.back();
    todo.pop_back();
    to->modified_unix = from->modified_unix;
    const auto touched = changed.find(from);
    for (const auto& [name, node] : touched == changed.end() ? from->durable : touched->second) {
      auto [copy, is_new] = copies.try_emplace(node.get());
      if (is_new) {
        copy->second = std::make_shared<Node>(node->is_dir);
        if (node->is_dir) {
          todo.emplace_back(node.get(), copy->second);
        } else {
          copy->second->modified_unix = node->modified_unix;
          copy->second->data = CrashedData(*node, seed, random);
          copy->second->synced = copy->second->data.size();
          image->used_bound += copy->second->data.size();
        }
      } else if (node->is_dir) {
        continue;  // half of a move survived; a directory has one place
      }
      to->entries[name] = copy->second;
    }
    to->durable = to->entries;
  }
  return image;
}

MemoryFileSystem::MemoryFileSystem(uint64_t capacity_bytes, const Clock& clock)
    : state_(std::make_shared<State>(capacity_bytes, clock)) {}

MemoryFileSystem::~MemoryFileSystem() = default;

std::unique_ptr<MemoryFileSystem> MemoryFileSystem::CrashImage(uint64_t seed) const {
  auto image = std::make_unique<MemoryFileSystem>();
  MutexLock lock(state_->mutex);
  image->state_ = state_->CrashImage(seed);
  return image;
}

void MemoryFileSystem::Crash(uint64_t seed) {
  MutexLock lock(state_->mutex);
  const std::shared_ptr<State> image = state_->CrashImage(seed);
  MutexLock image_lock(image->mutex);
  state_->root = image->root;
  state_->used_bound = image->used_bound;
  state_->pending.clear();
  ++state_->incarnation;
}

void MemoryFileSystem::SetCapacity(uint64_t capacity_bytes) {
  MutexLock lock(state_->mutex);
  state_->capacity = capacity_bytes;
}

Result<std::unique_ptr<WritableFile>> MemoryFileSystem::CreateExclusive(const std::string& path) {
  MutexLock lock(state_->mutex);
  GODWIT_ASSIGN_OR_RETURN(const State::Place place, state_->Find("create", path));
  if (place.node != nullptr) return Error(EEXIST, "create", path);
  auto node = std::make_shared<Node>(false);
  node->modified_unix = state_->clock.WallUnix();
  state_->Commit({{place.dir, place.name, node}});
  return std::unique_ptr<WritableFile>(
      std::make_unique<MemoryWritableFile>(state_, path, std::move(node), state_->incarnation));
}

Result<std::unique_ptr<RandomAccessFile>> MemoryFileSystem::OpenRead(const std::string& path) {
  MutexLock lock(state_->mutex);
  GODWIT_ASSIGN_OR_RETURN(NodePtr node, state_->Get("open", path));
  if (node->is_dir) return Error(EISDIR, "open", path);
  const uint64_t size = node->data.size();
  return std::unique_ptr<RandomAccessFile>(std::make_unique<MemoryRandomAccessFile>(
      state_, path, std::move(node), state_->incarnation, size));
}

Status MemoryFileSystem::Link(const std::string& from, const std::string& to) {
  MutexLock lock(state_->mutex);
  GODWIT_ASSIGN_OR_RETURN(const NodePtr node, state_->Get("link", from));
  GODWIT_ASSIGN_OR_RETURN(const State::Place place, state_->Find("link", to));
  if (place.node != nullptr) return Error(EEXIST, "link", from + ", " + to);
  if (node->is_dir) return Error(EPERM, "link", from + ", " + to);
  state_->Commit({{place.dir, place.name, node}});
  return OkStatus();
}

Status MemoryFileSystem::Rename(const std::string& from, const std::string& to) {
  const std::string both = from + ", " + to;
  MutexLock lock(state_->mutex);
  GODWIT_ASSIGN_OR_RETURN(const State::Place source, state_->Find("rename", from));
  GODWIT_ASSIGN_OR_RETURN(const State::Place target, state_->Find("rename", to));
  if (source.node == nullptr) return Error(ENOENT, "rename", both);
  if (source.name.empty() || target.name.empty()) return Error(EBUSY, "rename", both);
  if (source.node == target.node) return OkStatus();  // as rename(2) has it
  if (source.node->is_dir && IsWithin(*source.node, target.dir.get())) {
    return Error(EINVAL, "rename", both);
  }
  if (target.node != nullptr) {
    if (source.node->is_dir && !target.node->is_dir) return Error(ENOTDIR, "rename", both);
    if (!source.node->is_dir && target.node->is_dir) return Error(EISDIR, "rename", both);
    if (target.node->is_dir && !target.node->entries.empty()) {
      return Error(ENOTEMPTY, "rename", both);
    }
  }
  const Change add{target.dir, target.name, source.node};
  const Change remove{source.dir, source.name, nullptr};
  if (source.dir == target.dir) {
    state_->Commit({remove, add});
  } else {
    state_->Commit({add});
    state_->Commit({remove});
  }
  return OkStatus();
}

Status MemoryFileSystem::Unlink(const std::string& path) {
  MutexLock lock(state_->mutex);
  GODWIT_ASSIGN_OR_RETURN(const State::Place place, state_->Find("unlink", path));
  if (place.node == nullptr) return Error(ENOENT, "unlink", path);
  if (place.node->is_dir) return Error(EISDIR, "unlink", path);
  state_->Commit({{place.dir, place.name, nullptr}});
  return OkStatus();
}

Status MemoryFileSystem::CreateDir(const std::string& path) {
  MutexLock lock(state_->mutex);
  GODWIT_ASSIGN_OR_RETURN(const State::Place place, state_->Find("mkdir", path));
  if (place.node != nullptr) return Error(EEXIST, "mkdir", path);
  auto node = std::make_shared<Node>(true);
  node->modified_unix = state_->clock.WallUnix();
  state_->Commit({{place.dir, place.name, std::move(node)}});
  return OkStatus();
}

Status MemoryFileSystem::RemoveDir(const std::string& path) {
  MutexLock lock(state_->mutex);
  GODWIT_ASSIGN_OR_RETURN(const State::Place place, state_->Find("rmdir", path));
  if (place.node == nullptr) return Error(ENOENT, "rmdir", path);
  if (!place.node->is_dir) return Error(ENOTDIR, "rmdir", path);
  if (place.name.empty()) return Error(EBUSY, "rmdir", path);
  if (!place.node->entries.empty()) return Error(ENOTEMPTY, "rmdir", path);
  state_->Commit({{place.dir, place.name, nullptr}});
  return OkStatus();
}

Result<std::vector<DirEntry>> MemoryFileSystem::List(const std::string& path) {
  MutexLock lock(state_->mutex);
  GODWIT_ASSIGN_OR_RETURN(const NodePtr node, state_->Get("list", path));
  if (!node->is_dir) return Error(ENOTDIR, "list", path);
  std::vector<DirEntry> entries;
  for (const auto& [name, child] : node->entries) {
    entries.push_back({name, child->is_dir, child->data.size()});
  }
  return entries;
}

Result<FileInfo> MemoryFileSystem::Stat(const std::string& path) {
  MutexLock lock(state_->mutex);
  GODWIT_ASSIGN_OR_RETURN(const NodePtr node, state_->Get("stat", path));
  return FileInfo{
      .is_dir = node->is_dir, .size = node->data.size(), .modified_unix = node->modified_unix};
}

Status MemoryFileSystem::SyncDir(const std::string& path) {
  MutexLock lock(state_->mutex);
  GODWIT_ASSIGN_OR_RETURN(const NodePtr node, state_->Get("fsync directory", path));
  if (!node->is_dir) return Error(ENOTDIR, "fsync directory", path);
  node->durable = node->entries;
  for (Transaction& transaction : state_->pending) {
    std::erase_if(transaction, [&](const Change& change) { return change.dir == node; });
  }
  std::erase_if(state_->pending, [](const Transaction& t) { return t.empty(); });
  return OkStatus();
}

Result<SpaceInfo> MemoryFileSystem::Space(const std::string& path) {
  MutexLock lock(state_->mutex);
  GODWIT_RETURN_IF_ERROR(state_->Get("statvfs", path).status());
  state_->used_bound = state_->UsedBytes();
  return SpaceInfo{.free_bytes = state_->capacity - std::min(state_->capacity, state_->used_bound),
                   .total_bytes = state_->capacity};
}

Status MemoryFileSystem::CorruptByte(const std::string& path, uint64_t offset, uint8_t mask) {
  MutexLock lock(state_->mutex);
  GODWIT_ASSIGN_OR_RETURN(const NodePtr node, state_->Get("corrupt", path));
  if (offset >= node->data.size()) return Error(EINVAL, "corrupt", path);
  node->data[offset] = static_cast<char>(node->data[offset] ^ mask);
  return OkStatus();
}

Status MemoryFileSystem::Truncate(const std::string& path, uint64_t size) {
  MutexLock lock(state_->mutex);
  GODWIT_ASSIGN_OR_RETURN(const NodePtr node, state_->Get("truncate", path));
  if (node->is_dir || size > node->data.size()) return Error(EINVAL, "truncate", path);
  node->data.resize(size);
  node->synced = std::min<size_t>(node->synced, size);
  return OkStatus();
}

}  // namespace godwit
