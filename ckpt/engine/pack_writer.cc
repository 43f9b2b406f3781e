#include "ckpt/engine/pack_writer.h"

#include <fmt/core.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/background_pace.h"
#include "base/mutex.h"
#include "base/random.h"
#include "base/strings.h"
#include "base/thread.h"
#include "ckpt/codec/chunk_codec.h"
#include "ckpt/codec/encoding_memory.h"
#include "ckpt/engine/arena_rep.h"
#include "ckpt/engine/base_choice.h"
#include "ckpt/format/pack.h"
#include "ckpt/format/version.h"
#include "ckpt/io/pack_reader.h"
#include "ckpt/lineage/checkpoint_dir.h"

namespace godwit::ckpt {
namespace {

// A chunk of the share, encoded.
struct Encoded {
  Status status;
  PackIndexEntry entry;  // but its place in the file, and its source is one of BaseChoice's
  std::string frames;
  double encode_s = 0;  // of processor time; 0: stored as it is
};

double ThreadSeconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// Encodes the chunks of a snapshot. Thread-safe but for Worker.
class Share {
 public:
  // What a thread works with.
  struct Worker {
    ChunkEncoder encoder;
    std::string raw;
    std::string base;
  };

  Share(const std::shared_ptr<Arena::Rep>& rep, const WritePackOptions& options,
        const SlotInfo& info)
      : rep_(rep), options_(options), info_(info) {}

  // What is to be written and what is referred to.
  void Choose(const std::vector<ChunkMeta>& table);
  // Refers to nothing, after all.
  void ChooseFull(const std::string& why);
  size_t size() const { return staged_.size(); }
  uint64_t raw_bytes() const { return raw_bytes_; }
  const std::vector<StagedChunk>& staged() const { return staged_; }
  const BaseChoice& choice() const { return choice_; }
  const KeptPack* base() const { return base_.get(); }

  // `cheap`: stored, because processors are scarce.
  Encoded Encode(size_t i, Worker& worker, bool cheap);
  // All chunks were encoded.
  void Done() { encodings().EndSave(); }

 private:
  Status Load(const StagedChunk& staged, std::string& raw) const;
  // The same chunk of the base's snapshot. False: it is not what was committed any more.
  bool LoadBase(const StagedChunk& staged, std::string& raw) const;
  Status EncodeFrames(size_t i, bool delta, Worker& worker, Encoded& out);
  EncodingMemory& encodings() {
    return options_.history ? options_.history->encodings() : own_encodings_;
  }

  const std::shared_ptr<Arena::Rep>& rep_;
  const WritePackOptions& options_;
  const SlotInfo& info_;
  std::shared_ptr<const KeptPack> base_;
  std::vector<StagedChunk> staged_;
  BaseChoice choice_;
  EncodingMemory own_encodings_;
  bool encoding_ = true;
  uint64_t raw_bytes_ = 0;
};

void Share::Choose(const std::vector<ChunkMeta>& table) {
  for (uint64_t i = 0; i < table.size(); ++i) {
    const Chunk chunk = rep_->plan.chunk(i);
    if (rep_->plan.Owner(chunk, options_.rank, options_.world_size) != options_.rank) continue;
    staged_.push_back({i, table[i].bytes, table[i].digest});
    raw_bytes_ += table[i].bytes;
  }
  BaseLimits limits;
  if (options_.history) {
    limits = options_.history->limits();
    base_ = options_.history->Base(options_.save.term);
    encoding_ = options_.history->Encoding();
  }
  limits.deltas = limits.deltas && base_ && base_->snapshot;
  choice_ = ChooseBase(rep_->plan, options_.rank, options_.world_size, staged_,
                       base_ ? &base_->contents : nullptr, limits);
}

Status Share::Load(const StagedChunk& staged, std::string& raw) const {
  const Chunk chunk = rep_->plan.chunk(staged.chunk);
  // Copied, then checked: a worker may write to its snapshot memory although it must not.
  raw.assign(reinterpret_cast<const char*>(rep_->data(info_.index) + chunk.offset), staged.bytes);
  const Digest128 digest = DigestOf(AsBytes(raw));
  if (digest == staged.digest) return OkStatus();
  if (!rep_->Current() || rep_->Info(info_.index).state != SlotState::kWhole) {
    return AbortedError(fmt::format("the snapshot of step {} was given up meanwhile", info_.step));
  }
  return DataLossError(fmt::format(
      "snapshot memory of rank {}, step {}: {} has digest {}, at staging it was {}", options_.rank,
      info_.step, rep_->plan.Describe(chunk), digest.ToHex(), staged.digest.ToHex()));
}

void Share::ChooseFull(const std::string& why) {
  base_ = nullptr;
  choice_ = ChooseBase(rep_->plan, options_.rank, options_.world_size, staged_, nullptr, {});
  choice_.reason = "full: " + why;
}

bool Share::LoadBase(const StagedChunk& staged, std::string& raw) const {
  const auto& index = base_->contents.index;
  const auto it =
      std::lower_bound(index.begin(), index.end(), staged.chunk,
                       [](const PackIndexEntry& e, uint64_t chunk) { return e.chunk < chunk; });
  if (it == index.end() || it->chunk != staged.chunk) return false;
  const Chunk chunk = rep_->plan.chunk(staged.chunk);
  raw.assign(reinterpret_cast<const char*>(rep_->data(base_->snapshot->slot()) + chunk.offset),
             staged.bytes);
  return DigestOf(AsBytes(raw)) == it->digest;
}

Status Share::EncodeFrames(size_t i, bool delta, Worker& worker, Encoded& out) {
  const Chunk chunk = rep_->plan.chunk(staged_[i].chunk);
  // Chunks of one tensor are alike; small ones that share a chunk go by the first.
  const uint32_t tensor = rep_->plan.segment(chunk, 0).entry;
  const ByteSpan base = delta ? AsBytes(worker.base) : ByteSpan();
  auto encoding = encodings().Get(tensor, delta);
  if (!encoding) {
    const bool is_float = chunk.dtype == DType::kF64 || chunk.dtype == DType::kF32 ||
                          chunk.dtype == DType::kBF16 || chunk.dtype == DType::kF16;
    const auto width = static_cast<uint8_t>(chunk.is_blob ? 1 : ByteSize(chunk.dtype));
    GODWIT_ASSIGN_OR_RETURN(encoding,
                            worker.encoder.Choose(AsBytes(worker.raw), base, width, is_float));
    encodings().Chosen(tensor, delta, *encoding);
  }
  // Without what choosing took, which later chunks of the tensor don't.
  const double start = ThreadSeconds();
  GODWIT_RETURN_IF_ERROR(worker.encoder.Encode(
      AsBytes(worker.raw), encoding->transform == Transform::kDeltaPlanes ? base : ByteSpan(),
      *encoding, out.frames));
  encodings().Achieved(tensor, delta, worker.raw.size(), out.frames.size());
  PackIndexEntry& e = out.entry;
  if (encoding->transform != Transform::kNone) {
    e.transform = static_cast<uint8_t>(encoding->transform);
    e.width = encoding->width;
  }
  if (encoding->transform == Transform::kDeltaPlanes) {
    e.kind = ChunkKind::kDelta;
    e.source = choice_.chunks[i].source;
    e.source_chunk = choice_.chunks[i].source_chunk;
    e.depth = choice_.chunks[i].depth;
  }
  out.encode_s = ThreadSeconds() - start;
  return OkStatus();
}

Encoded Share::Encode(size_t i, Worker& worker, bool cheap) {
  const StagedChunk& staged = staged_[i];
  const ChunkChoice& choice = choice_.chunks[i];
  Encoded out;
  out.entry.chunk = staged.chunk;
  out.entry.raw_bytes = staged.bytes;
  out.entry.digest = staged.digest;
  if (choice.kind == ChunkKind::kReference) {
    out.entry.kind = choice.kind;
    out.entry.source = choice.source;
    out.entry.source_chunk = choice.source_chunk;
    out.entry.depth = choice.depth;
    return out;
  }
  out.status = Load(staged, worker.raw);
  if (!out.status.ok()) return out;
  if (cheap || !encoding_) {
    out.status = worker.encoder.Encode(AsBytes(worker.raw), {}, {}, out.frames);
  } else {
    const bool delta = choice.kind == ChunkKind::kDelta && LoadBase(staged, worker.base);
    out.status = EncodeFrames(i, delta, worker, out);
  }
  out.entry.frame_bytes = out.frames.size();
  return out;
}

// Encodes on several threads and hands the chunks out in their order. At most kAhead chunks for
// each thread are held.
class Pipeline {
 public:
  Pipeline(Share& share, uint32_t threads) : share_(share), slots_(size_t{threads} * kAhead) {
    for (uint32_t t = 0; t < threads; ++t) {
      threads_.emplace_back("gw-encode", [this](StopToken) { Run(); });
    }
  }
  ~Pipeline() {
    {
      MutexLock lock(mutex_);
      stop_ = true;
      changed_.NotifyAll();
    }
    for (Thread& t : threads_) t.Join();
  }

  // Blocks until chunk `i` is done. REQUIRES: each once, in order.
  Encoded Take(size_t i) {
    MutexLock lock(mutex_);
    std::optional<Encoded>& slot = slots_[i % slots_.size()];
    while (!slot) changed_.Wait(mutex_);
    Encoded out = std::move(*slot);
    slot.reset();
    taken_ = i + 1;
    changed_.NotifyAll();
    return out;
  }

 private:
  static constexpr size_t kAhead = 2;

  void Run() {
    Share::Worker worker;
    for (;;) {
      size_t i = 0;
      {
        MutexLock lock(mutex_);
        while (!stop_ && next_ < share_.size() && next_ >= taken_ + slots_.size()) {
          changed_.Wait(mutex_);
        }
        if (stop_ || next_ >= share_.size()) return;
        i = next_++;
      }
      Encoded encoded = share_.Encode(i, worker, /*cheap=*/false);
      MutexLock lock(mutex_);
      slots_[i % slots_.size()] = std::move(encoded);
      changed_.NotifyAll();
    }
  }

  Share& share_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::optional<Encoded>> slots_ GUARDED_BY(mutex_);
  size_t next_ GUARDED_BY(mutex_) = 0;   // to be encoded
  size_t taken_ GUARDED_BY(mutex_) = 0;  // handed out
  bool stop_ GUARDED_BY(mutex_) = false;
  std::vector<Thread> threads_;
};

class Writer {
 public:
  // `pace`: of a writer that nobody waits for; null: as fast as it goes.
  Writer(FileSystem& fs, Clock& clock, const Arena& arena, const WritePackOptions& options,
         BackgroundPace* pace)
      : pace_(pace),
        fs_(fs),
        clock_(clock),
        rep_(arena.rep()),
        options_(options),
        path_(PackPath(options.directory, options.save, options.rank)) {}

  Result<WrittenPack> Run();

 private:
  Status CheckOptions() const;
  // The pack that is already there; nullopt when there is none.
  Result<std::optional<WrittenPack>> Existing();
  Status MakeDir();
  Status CheckSpace(const Share& share, const std::string& dir);
  // All but the tail, which is returned.
  Result<PackTail> WriteBody(WritableFile& file, const SlotInfo& info, Share& share);
  Status StillGoing() const;
  uint32_t Threads() const;
  // Adds to storage_s_.
  template <typename F>
  Status Timed(F io) {
    const MonotonicTime start = clock_.Monotonic();
    Status status = io();
    storage_s_ += std::chrono::duration<double>(clock_.Monotonic() - start).count();
    return status;
  }
  // For the next save to refer to.
  void Remember(const PackTail& tail, SlotPin pin);

  // Appends, in small pieces when paced: the kernel copies a piece at one go.
  Status Append(WritableFile& file, std::string_view bytes);
  void EndPiece();

  BackgroundPace* const pace_;
  FileSystem& fs_;
  Clock& clock_;
  const std::shared_ptr<Arena::Rep> rep_;
  const WritePackOptions& options_;
  const std::string path_;
  std::vector<PackIndexEntry> index_;
  std::vector<PackSource> sources_;
  double storage_s_ = 0;  // that the file took
  SaveRates rates_;
  uint64_t need_ = 0;
  WrittenPack written_;
};

Status Writer::CheckOptions() const {
  if (options_.directory.empty() || options_.directory.front() != '/') {
    return InvalidArgumentError(fmt::format(
        "directory of checkpoints '{}': allowed is an absolute path", options_.directory));
  }
  if (options_.world_size == 0 || options_.world_size > kMaxWorldSize ||
      options_.rank >= options_.world_size) {
    return InvalidArgumentError(fmt::format("{}: rank {} of world size {}, allowed are 1 to {}",
                                            path_, options_.rank, options_.world_size,
                                            kMaxWorldSize));
  }
  return OkStatus();
}

Status Writer::StillGoing() const {
  if (options_.cancel && options_.cancel->load(std::memory_order_relaxed)) {
    return CancelledError(fmt::format("{}: cancelled", path_));
  }
  if (options_.deadline && clock_.Monotonic() >= *options_.deadline) {
    return DeadlineExceededError(fmt::format("{}: the deadline has passed", path_));
  }
  return OkStatus();
}

Result<std::optional<WrittenPack>> Writer::Existing() {
  auto tail = ReadPackTail(fs_, path_);
  if (tail.status().code() == StatusCode::kNotFound) return std::optional<WrittenPack>();
  if (!tail.ok()) return tail.status();
  if (tail->save != options_.save || tail->rank != options_.rank ||
      tail->world_size != options_.world_size || tail->plan_hash != rep_->plan.hash() ||
      tail->snapshot_epoch != options_.snapshot_epoch ||
      tail->snapshot_step != options_.snapshot_step) {
    return AlreadyExistsError(
        fmt::format("{}: holds another pack: {}, rank {} of {}, snapshot (epoch {}, step {}), plan "
                    "{}",
                    path_, ToString(tail->save), tail->rank, tail->world_size, tail->snapshot_epoch,
                    tail->snapshot_step, tail->plan_hash.ToHex()));
  }
  // The name appears when the bytes are durable; the name itself may not be yet.
  GODWIT_RETURN_IF_ERROR(fs_.SyncDir(DirName(path_)));
  return std::optional<WrittenPack>(
      WrittenPack{EncodePackTail(*tail), tail->file_bytes, tail->raw_bytes});
}

// A directory that another rank made counts only once its entry is durable, so each rank syncs.
Status Writer::MakeDir() {
  const std::string dir = DirName(path_);
  const Status made = fs_.CreateDir(dir);
  if (!made.ok() && made.code() != StatusCode::kAlreadyExists) return made;
  return fs_.SyncDir(DirName(dir));
}

Status Writer::CheckSpace(const Share& share, const std::string& dir) {
  need_ = kPackHeaderBytes + kPackTailBytes + rep_->plan.serialized().size() +
          share.choice().sources.size() * kPackSourceBytes;
  for (size_t i = 0; i < share.size(); ++i) {
    need_ += kPackIndexEntryBytes;
    if (share.choice().chunks[i].kind != ChunkKind::kReference) need_ += share.staged()[i].bytes;
  }
  GODWIT_ASSIGN_OR_RETURN(const SpaceInfo space, fs_.Space(dir));
  // How far the state compresses is not known. Before a deadline all is tried; a periodic save
  // would rather not fill the disk.
  if (!options_.deadline && space.free_bytes < need_) {
    return ResourceExhaustedError(
        fmt::format("{}: needs up to {} bytes, {} are free", path_, need_, space.free_bytes));
  }
  return OkStatus();
}

void Writer::EndPiece() {
  if (!pace_) return;
  if (const Duration rest = pace_->EndPiece(); rest > Duration::zero()) {
    std::this_thread::sleep_for(rest);
  }
}

Status Writer::Append(WritableFile& file, std::string_view bytes) {
  constexpr size_t kPieceBytes = 256 * 1024;
  const size_t piece = pace_ ? kPieceBytes : bytes.size();
  while (!bytes.empty()) {
    const std::string_view now = bytes.substr(0, piece);
    GODWIT_RETURN_IF_ERROR(Timed([&] { return file.Append(AsBytes(now)); }));
    bytes.remove_prefix(now.size());
    EndPiece();
  }
  return OkStatus();
}

uint32_t Writer::Threads() const {
  constexpr uint32_t kMostThreads = 16;
  if (!options_.deadline) return 1;
  const uint32_t wanted = options_.threads ? options_.threads : std::thread::hardware_concurrency();
  return std::clamp<uint32_t>(wanted, 1, kMostThreads);
}

Result<PackTail> Writer::WriteBody(WritableFile& file, const SlotInfo& info, Share& share) {
  const Plan& plan = rep_->plan;
  std::string out = EncodePackHeader({options_.save, options_.rank, options_.world_size});
  uint64_t offset = out.size();
  uint32_t max_depth = 0;
  // Of BaseChoice's sources those that are used after all: their place in sources_.
  std::vector<uint32_t> place(share.choice().sources.size(), kThisPack);
  bool deltas = false;
  bool references = false;

  const uint32_t threads = Threads();
  std::optional<Pipeline> pipeline;
  std::optional<Share::Worker> worker;
  if (threads > 1) {
    pipeline.emplace(share, threads);
  } else {
    worker.emplace();
  }
  double encode_s = 0;
  uint64_t encoded_raw_bytes = 0;
  uint64_t encoded_bytes = 0;
  index_.reserve(share.size());
  for (size_t i = 0; i < share.size(); ++i) {
    GODWIT_RETURN_IF_ERROR(StillGoing());
    Encoded encoded =
        pipeline ? pipeline->Take(i) : share.Encode(i, *worker, pace_ && pace_->contended());
    if (!encoded.status.ok()) return encoded.status.Annotate(path_);
    EndPiece();
    PackIndexEntry& e = encoded.entry;
    if (e.kind == ChunkKind::kReference) {
      references = true;
      if (e.source == kThisPack) {
        // As the first of them was written in the end.
        const auto first = std::lower_bound(
            index_.begin(), index_.end(), e.source_chunk,
            [](const PackIndexEntry& entry, uint64_t chunk) { return entry.chunk < chunk; });
        e.depth = first->depth;
      }
    } else {
      e.frame_offset = offset;
      offset += e.frame_bytes;
    }
    deltas = deltas || e.kind == ChunkKind::kDelta;
    if (e.source != kThisPack) {
      uint32_t& at = place[e.source];
      if (at == kThisPack) {
        at = static_cast<uint32_t>(sources_.size());
        sources_.push_back(share.choice().sources[e.source]);
      }
      e.source = at;
    }
    max_depth = std::max<uint32_t>(max_depth, e.depth);
    index_.push_back(e);
    if (encoded.encode_s > 0) {
      encode_s += encoded.encode_s;
      encoded_raw_bytes += e.raw_bytes;
      encoded_bytes += e.frame_bytes;
    }
    out += encoded.frames;
    if (out.size() >= options_.append_bytes) {
      GODWIT_RETURN_IF_ERROR(Append(file, out));
      out.clear();
    }
  }
  share.Done();
  if (encode_s > 0 && encoded_raw_bytes > 0) {
    rates_.encode_bytes_per_s = static_cast<double>(encoded_raw_bytes) / encode_s * threads;
    rates_.ratio = static_cast<double>(encoded_bytes) / static_cast<double>(encoded_raw_bytes);
  }
  PackTail tail;
  tail.save = options_.save;
  // Depth may come from a reference to a difference.
  tail.must_understand =
      (references ? kFeatureReferences : 0) | (deltas || max_depth > 0 ? kFeatureDeltas : 0);
  tail.rank = options_.rank;
  tail.world_size = options_.world_size;
  tail.snapshot_epoch = info.epoch;
  tail.snapshot_step = info.step;
  tail.plan_hash = plan.hash();
  tail.shared_hash = plan.shared_hash();
  tail.plan_offset = offset;
  tail.plan_bytes = plan.serialized().size();
  tail.sources = static_cast<uint32_t>(sources_.size());
  tail.max_depth = max_depth;
  tail.generation = sources_.empty() || !share.base() ? 0 : share.base()->contents.generation + 1;
  const std::string source_bytes = EncodePackSources(sources_);
  tail.sources_digest = DigestOf(AsBytes(source_bytes));
  tail.index_offset = offset + tail.plan_bytes + source_bytes.size();
  tail.chunks = index_.size();
  const std::string index_bytes = EncodePackIndex(index_);
  tail.index_digest = DigestOf(AsBytes(index_bytes));
  tail.raw_bytes = share.raw_bytes();
  tail.file_bytes = tail.index_offset + index_bytes.size() + kPackTailBytes;
  written_.raw_bytes = share.raw_bytes();
  written_.choice = share.choice().reason;
  out += plan.serialized();
  out += source_bytes;
  out += index_bytes;
  GODWIT_RETURN_IF_ERROR(Append(file, out));
  return tail;
}

void Writer::Remember(const PackTail& tail, SlotPin pin) {
  KeptPack kept;
  kept.contents.pack = {tail.save, tail.rank, TailDigest(written_.tail)};
  kept.contents.plan_hash = tail.plan_hash;
  kept.contents.world_size = tail.world_size;
  kept.contents.generation = tail.generation;
  kept.contents.sources = std::move(sources_);
  kept.contents.index = std::move(index_);
  if (options_.history->limits().deltas) kept.snapshot.emplace(std::move(pin));
  options_.history->Written(std::move(kept));
  // Small saves are all latency.
  constexpr uint64_t kLeastBytes = 4 << 20;
  if (storage_s_ > 0 && tail.file_bytes >= kLeastBytes) {
    rates_.storage_bytes_per_s = static_cast<double>(tail.file_bytes) / storage_s_;
  }
  options_.history->Measured(rates_);
}

Result<WrittenPack> Writer::Run() {
  GODWIT_RETURN_IF_ERROR(CheckOptions());
  GODWIT_ASSIGN_OR_RETURN(auto existing, Existing());
  if (existing) return *existing;

  auto pin = Arena::Rep::Pin(rep_, options_.snapshot_epoch, options_.snapshot_step);
  if (!pin) {
    return NotFoundError(
        fmt::format("snapshot memory of rank {}: no whole snapshot of (epoch {}, "
                    "step {})",
                    options_.rank, options_.snapshot_epoch, options_.snapshot_step));
  }
  const SlotInfo info = rep_->Info(pin->slot());
  if (info.rank != options_.rank || info.world_size != options_.world_size) {
    return FailedPreconditionError(
        fmt::format("{}: the snapshot is of rank {} of {}, asked for is {} of {}", path_, info.rank,
                    info.world_size, options_.rank, options_.world_size));
  }
  GODWIT_ASSIGN_OR_RETURN(const auto table, rep_->CopyTable(info));
  GODWIT_RETURN_IF_ERROR(StillGoing());
  GODWIT_RETURN_IF_ERROR(MakeDir());
  const std::string dir = DirName(path_);
  Share share(rep_, options_, info);
  share.Choose(table);
  // Looked at now, or each save would be refused at its commit, for ever.
  if (const Status s = CheckSources(fs_, options_.directory, share.choice().sources); !s.ok()) {
    share.ChooseFull(s.message());
  }
  GODWIT_RETURN_IF_ERROR(CheckSpace(share, dir));

  // Of its own name, so that a writer that was given up but still runs can do no harm.
  const std::string part = fmt::format("{}.part-{:016x}", path_, SystemRandom64());
  GODWIT_ASSIGN_OR_RETURN(auto file, fs_.CreateExclusive(part));
  PackTail tail;
  bool ours = false;
  const Status status = [&]() -> Status {
    GODWIT_ASSIGN_OR_RETURN(tail, WriteBody(*file, info, share));
    written_.tail = EncodePackTail(tail);
    GODWIT_RETURN_IF_ERROR(StillGoing());
    // Data before the tail: a tail that a crash leaves behind must not speak of bytes that are
    // lost.
    GODWIT_RETURN_IF_ERROR(Timed([&] { return file->Sync(); }));
    GODWIT_RETURN_IF_ERROR(fs_.SyncDir(dir));
    GODWIT_RETURN_IF_ERROR(file->Append(AsBytes(written_.tail)));
    GODWIT_RETURN_IF_ERROR(file->Sync());
    written_.bytes = file->offset();
    GODWIT_RETURN_IF_ERROR(file->Close());
    // Then the name, so that whoever sees it knows that the bytes are durable.
    const Status linked = fs_.Link(part, path_);
    if (linked.code() == StatusCode::kAlreadyExists) {
      GODWIT_ASSIGN_OR_RETURN(auto other, Existing());
      if (!other) return linked;
      written_ = *other;
    } else {
      GODWIT_RETURN_IF_ERROR(linked);
      ours = true;
    }
    return fs_.SyncDir(dir);
  }();
  if (status.ok()) {
    // A second name of the same file costs nothing: Retain removes what stays.
    static_cast<void>(fs_.Unlink(part));
    if (ours && options_.history) Remember(tail, std::move(*pin));
    return written_;
  }
  // Gives the space back; when that fails too, Retain removes the file later. A pack whose name is
  // there already stays: it is whole.
  file.reset();
  static_cast<void>(fs_.Unlink(part));
  if (status.code() == StatusCode::kResourceExhausted) {
    return status.Annotate(fmt::format("{}: needs up to {} bytes", path_, need_));
  }
  return status;
}

}  // namespace

Result<WrittenPack> WritePack(FileSystem& fs, Clock& clock, const Arena& arena,
                              const WritePackOptions& options) {
  if (options.deadline) return Writer(fs, clock, arena, options, nullptr).Run();
  // A thread of its own: without privilege a thread can't come back from SCHED_IDLE (sched(7)).
  Result<WrittenPack> result = InternalError("the writer did not run");
  Thread idle("gw-encode", [&](StopToken) {
    const sched_param none{};
    // Not allowed: then at the caller's priority.
    static_cast<void>(sched_setscheduler(0, SCHED_IDLE, &none));
    BackgroundPace pace(clock);
    result = Writer(fs, clock, arena, options, &pace).Run();
  });
  idle.Join();
  return result;
}

}  // namespace godwit::ckpt
