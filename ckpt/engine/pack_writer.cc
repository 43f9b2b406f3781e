#include "ckpt/engine/pack_writer.h"

#include <fmt/core.h>
#include <sched.h>

#include <cstring>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/strings.h"
#include "base/thread.h"
#include "ckpt/codec/frame.h"
#include "ckpt/engine/arena_rep.h"
#include "ckpt/format/pack.h"
#include "ckpt/io/pack_reader.h"
#include "ckpt/lineage/checkpoint_dir.h"

namespace godwit::ckpt {
namespace {

class Writer {
 public:
  Writer(FileSystem& fs, Clock& clock, const Arena& arena, const WritePackOptions& options)
      : fs_(fs),
        clock_(clock),
        rep_(arena.rep()),
        options_(options),
        path_(PackPath(options.directory, options.save, options.rank)),
        encoder_(options.zstd_level) {}

  Result<WrittenPack> Run();

 private:
  Status CheckOptions() const;
  // The pack that is already there; nullopt when there is none.
  Result<std::optional<WrittenPack>> Existing();
  Status MakeDir();
  Status CheckSpace(const std::vector<ChunkMeta>& table, const std::string& dir);
  Result<std::string> WriteBody(WritableFile& file, const SlotInfo& info,
                                const std::vector<ChunkMeta>& table);
  Status StillGoing() const;
  bool InShare(const Chunk& chunk) const {
    return rep_->plan.Owner(chunk, options_.rank, options_.world_size) == options_.rank;
  }

  FileSystem& fs_;
  Clock& clock_;
  const std::shared_ptr<Arena::Rep> rep_;
  const WritePackOptions& options_;
  const std::string path_;
  FrameEncoder encoder_;
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

Status Writer::CheckSpace(const std::vector<ChunkMeta>& table, const std::string& dir) {
  need_ = kPackHeaderBytes + kPackTailBytes + rep_->plan.serialized().size();
  for (uint64_t i = 0; i < table.size(); ++i) {
    if (InShare(rep_->plan.chunk(i))) need_ += table[i].bytes + kPackIndexEntryBytes;
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

Result<std::string> Writer::WriteBody(WritableFile& file, const SlotInfo& info,
                                      const std::vector<ChunkMeta>& table) {
  const Plan& plan = rep_->plan;
  std::string out = EncodePackHeader({options_.save, options_.rank, options_.world_size});
  std::vector<PackIndexEntry> index;
  std::string raw;
  uint64_t offset = out.size();
  for (uint64_t i = 0; i < table.size(); ++i) {
    const Chunk chunk = plan.chunk(i);
    if (!InShare(chunk)) continue;
    GODWIT_RETURN_IF_ERROR(StillGoing());
    // Copied, then checked: a worker may write to its snapshot memory although it must not.
    raw.assign(reinterpret_cast<const char*>(rep_->data(info.index) + chunk.offset),
               table[i].bytes);
    if (const Digest128 digest = DigestOf(AsBytes(raw)); digest != table[i].digest) {
      if (!rep_->Current() || rep_->Info(info.index).state != SlotState::kWhole) {
        return AbortedError(
            fmt::format("{}: the snapshot of step {} was given up meanwhile", path_, info.step));
      }
      return DataLossError(fmt::format(
          "snapshot memory of rank {}, step {}: {} has digest {}, at staging it was {}",
          options_.rank, info.step, plan.Describe(chunk), digest.ToHex(), table[i].digest.ToHex()));
    }
    const size_t before = out.size();
    GODWIT_RETURN_IF_ERROR(encoder_.Encode(AsBytes(raw), out));
    PackIndexEntry entry;
    entry.chunk = i;
    entry.raw_bytes = raw.size();
    entry.frame_offset = offset;
    entry.frame_bytes = out.size() - before;
    entry.digest = table[i].digest;
    offset += entry.frame_bytes;
    written_.raw_bytes += entry.raw_bytes;
    index.push_back(entry);
    if (out.size() >= options_.append_bytes) {
      GODWIT_RETURN_IF_ERROR(file.Append(AsBytes(out)));
      out.clear();
    }
  }
  PackTail tail;
  tail.save = options_.save;
  tail.rank = options_.rank;
  tail.world_size = options_.world_size;
  tail.snapshot_epoch = info.epoch;
  tail.snapshot_step = info.step;
  tail.plan_hash = plan.hash();
  tail.shared_hash = plan.shared_hash();
  tail.plan_offset = offset;
  tail.plan_bytes = plan.serialized().size();
  tail.sources_digest = DigestOf({});
  tail.index_offset = offset + tail.plan_bytes;
  tail.chunks = index.size();
  const std::string index_bytes = EncodePackIndex(index);
  tail.index_digest = DigestOf(AsBytes(index_bytes));
  tail.raw_bytes = written_.raw_bytes;
  tail.file_bytes = tail.index_offset + index_bytes.size() + kPackTailBytes;
  out += plan.serialized();
  out += index_bytes;
  GODWIT_RETURN_IF_ERROR(file.Append(AsBytes(out)));
  return EncodePackTail(tail);
}

Result<WrittenPack> Writer::Run() {
  GODWIT_RETURN_IF_ERROR(CheckOptions());
  GODWIT_ASSIGN_OR_RETURN(auto existing, Existing());
  if (existing) return *existing;

  const auto pin = Arena::Rep::Pin(rep_, options_.snapshot_epoch, options_.snapshot_step);
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
  GODWIT_RETURN_IF_ERROR(CheckSpace(table, dir));

  // Of its own name, so that a writer that was given up but still runs can do no harm.
  const std::string part = fmt::format("{}.part-{:016x}", path_, SystemRandom64());
  GODWIT_ASSIGN_OR_RETURN(auto file, fs_.CreateExclusive(part));
  const Status status = [&]() -> Status {
    GODWIT_ASSIGN_OR_RETURN(written_.tail, WriteBody(*file, info, table));
    GODWIT_RETURN_IF_ERROR(StillGoing());
    // Data before the tail: a tail that a crash leaves behind must not speak of bytes that are
    // lost.
    GODWIT_RETURN_IF_ERROR(file->Sync());
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
    }
    return fs_.SyncDir(dir);
  }();
  if (status.ok()) {
    // A second name of the same file costs nothing: Retain removes what stays.
    static_cast<void>(fs_.Unlink(part));
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
  if (options.deadline) return Writer(fs, clock, arena, options).Run();
  // A thread of its own: without privilege a thread can't come back from SCHED_IDLE (sched(7)).
  Result<WrittenPack> result = InternalError("the writer did not run");
  Thread idle("gw-encode", [&](StopToken) {
    const sched_param none{};
    // Not allowed: then at the caller's priority.
    static_cast<void>(sched_setscheduler(0, SCHED_IDLE, &none));
    result = Writer(fs, clock, arena, options).Run();
  });
  idle.Join();
  return result;
}

}  // namespace godwit::ckpt
