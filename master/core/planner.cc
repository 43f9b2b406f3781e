#include "master/core/planner.h"

#include <algorithm>

namespace godwit::master {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Figures for what was not measured yet. 50 MB/s is what a network file system gives one writer on
// a bad day; the others are several times what a two-core machine shows.
constexpr double kUnmeasuredPackNsPerByte = 20.0;
constexpr double kStageNsPerByte = 2.0;
constexpr Duration kUnmeasuredStep = seconds(2);
constexpr Duration kUnmeasuredCommit = milliseconds(500);
constexpr Duration kUnmeasuredExit = seconds(2);
constexpr Duration kMessages = milliseconds(50);      // orders and answers of one round, all nodes
constexpr Duration kPackConstant = milliseconds(50);  // a few fsyncs of an almost empty pack

Duration Scale(double ns_per_byte, uint64_t bytes) {
  return Duration(static_cast<int64_t>(ns_per_byte * static_cast<double>(bytes)));
}

// Room for a slower disk or a busier machine than so far.
Duration Half(Duration d) { return d + d / 2; }

Duration WriteTime(const Measured& m) {
  const double rate = m.pack_ns_per_byte > 0 ? m.pack_ns_per_byte : kUnmeasuredPackNsPerByte;
  return Half(Scale(rate, m.snapshot_bytes)) + kPackConstant;
}

Duration CommitTime(const Measured& m) {
  return m.commit > Duration(0) ? Half(m.commit) + milliseconds(20) : kUnmeasuredCommit;
}

}  // namespace

Plan PlanLeave(const PlanInput& input) {
  const Measured& m = input.measured;
  Plan plan;
  if (input.from == PlanFrom::kRunning) {
    // A rank short of S may have to finish one step and do another.
    const Duration step = m.longest_step > Duration(0) ? m.longest_step : kUnmeasuredStep;
    plan.agree = step + step / 4 + 2 * kMessages;
    plan.stage = m.stage > Duration(0) ? Half(m.stage)
                                       : Scale(kStageNsPerByte, m.snapshot_bytes) + kMessages;
  }
  plan.exit = m.exit > Duration(0) ? Half(m.exit) + kMessages : kUnmeasuredExit;
  if (input.needs_save) {
    plan.write = WriteTime(m);
    plan.commit = CommitTime(m);
  }
  const Duration ready = plan.agree + plan.stage;
  plan.to_gpu = ready + plan.exit;
  plan.to_node = ready + std::max(plan.exit, plan.write + plan.commit) + kMessages;
  return plan;
}

Duration FallbackLead(const Measured& measured) {
  return WriteTime(measured) + CommitTime(measured) + milliseconds(250);
}

}  // namespace godwit::master
