#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "ckpt/format/save_id.h"

namespace godwit::cli {

// Where the sampler of a save stands.
struct SamplerPlace {
  uint64_t pass = 0;
  uint64_t position = 0;  // samples of the pass that were used
  uint64_t dataset_size = 0;
};

// NOT_FOUND when the save has no sampler.
Result<SamplerPlace> FindSamplerPlace(const std::string& dir, const ckpt::SaveId& save);

// Checks the ledger of a committed save: that each sample of each pass was handed out exactly once,
// and, when `audit` (a file or a directory of logs) is given, that the data set's own log says the
// same. Prints the result; returns the exit code.
int PrintLedgerCheck(const std::string& dir, const ckpt::SaveId& save, const std::string& audit,
                     bool json);

}  // namespace godwit::cli
