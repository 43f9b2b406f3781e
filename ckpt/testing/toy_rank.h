#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "ckpt/engine/arena.h"
#include "ckpt/engine/pack_history.h"
#include "ckpt/engine/pack_writer.h"
#include "ckpt/engine/snapshotter.h"
#include "ckpt/lineage/checkpoint_dir.h"
#include "ckpt/testing/toy_state.h"

namespace godwit::ckpt::testing {

// A rank with its state, snapshot memory and snapshotter.
struct ToyRank {
  ToyRank(uint32_t rank, uint32_t world_size, uint64_t term, uint64_t epoch, uint64_t scale = 1,
          uint32_t slots = kArenaSlots)
      : state(rank, world_size, scale),
        arena(*Arena::Private(*PlanOf(state.List()), slots)),
        rank(rank),
        world_size(world_size),
        epoch(epoch) {
    Snapshotter::Options options;
    options.rank = rank;
    options.world_size = world_size;
    options.term = term;
    options.epoch = epoch;
    options.clock = &RealClock();
    snapshotter = *Snapshotter::Open(state.List(), arena, options);
  }

  // The state of that boundary, whole in snapshot memory; older ones are freed.
  Status Stage(uint64_t step) {
    state.Fill(step);
    arena.FreeOlder(epoch + 1, 0);
    return snapshotter->StageNow(step, std::chrono::seconds(30));
  }

  Result<WrittenPack> Write(FileSystem& fs, const std::string& dir, const SaveId& save) {
    WritePackOptions o;
    o.directory = dir;
    o.save = save;
    o.snapshot_epoch = epoch;
    o.snapshot_step = save.step;
    o.rank = rank;
    o.world_size = world_size;
    o.append_bytes = append_bytes;
    o.history = history.get();
    o.deadline = RealClock().Monotonic() + std::chrono::seconds(60);
    return WritePack(fs, RealClock(), arena, o);
  }

  ToyState state;
  Arena arena;
  uint32_t rank;
  uint32_t world_size;
  uint64_t epoch;
  size_t append_bytes = 1 << 20;
  std::unique_ptr<PackHistory> history;  // null: saves refer to nothing
  std::unique_ptr<Snapshotter> snapshotter;
};

// All ranks of a job in one process, and the master's part of a save.
struct ToyJob {
  ToyJob(uint32_t world_size, uint64_t term, uint64_t epoch, uint64_t scale = 1,
         uint32_t slots = kArenaSlots) {
    for (uint32_t r = 0; r < world_size; ++r) {
      ranks.push_back(std::make_unique<ToyRank>(r, world_size, term, epoch, scale, slots));
    }
  }
  Status Stage(uint64_t step) {
    for (auto& r : ranks) GODWIT_RETURN_IF_ERROR(r->Stage(step));
    return OkStatus();
  }
  Result<Commit> Save(FileSystem& fs, const std::string& dir, const SaveId& save) {
    std::vector<std::string> tails;
    for (auto& r : ranks) {
      GODWIT_ASSIGN_OR_RETURN(const WrittenPack pack, r->Write(fs, dir, save));
      tails.push_back(pack.tail);
    }
    GODWIT_ASSIGN_OR_RETURN(const Commit commit, CommitSave(fs, dir, save, tails));
    for (auto& r : ranks) {
      if (r->history) r->history->Committed(save);
    }
    return commit;
  }
  std::vector<std::unique_ptr<ToyRank>> ranks;
};

}  // namespace godwit::ckpt::testing
