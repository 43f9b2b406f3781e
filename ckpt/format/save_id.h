#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace godwit::ckpt {

// Names one try to save one boundary. All files of the try carry it, so that a second try after a
// shrink never mixes with the first.
struct SaveId {
  uint64_t term = 0;     // the writer's incarnation; 1 is the first
  uint64_t step = 0;     // the boundary: updates done
  uint32_t attempt = 0;  // grows with each try of the writer

  friend auto operator<=>(const SaveId&, const SaveId&) = default;
};

// "t00000003-s0000000120-a0001": sorts as the ids do. Parse accepts exactly that.
std::string ToString(const SaveId& id);
Result<SaveId> ParseSaveId(std::string_view text);

}  // namespace godwit::ckpt
