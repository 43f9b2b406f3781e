// RunAgent and RunPlain as programs, for the tests of this folder (the command line is another
// folder's), and the master that RunPlain starts: it lets the workers run to their end.
//   launcher_test_agent agent MASTER RUN_DIR SLOTS ADOPT_WINDOW LOST_LIMIT
//   launcher_test_agent plain RUN_DIR N SHUTDOWN_TIMEOUT -- COMMAND...
//   launcher_test_agent master --standalone ... -- COMMAND...
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/strings.h"
#include "launcher/agent.h"
#include "launcher/plain_run.h"
#include "launcher/testing/fake_master.h"
#include "launcher/testing/processes.h"

namespace godwit::testing {
namespace {

int Agent(char** argv) {
  AgentOptions options;
  options.job_id = "job";
  options.node_id = "node-a";
  options.master = argv[0];
  options.run_dir = argv[1];
  options.slots = static_cast<uint32_t>(*ParseUint64(argv[2]));
  options.adopt_window = *ParseDuration(argv[3]);
  options.master_lost_limit = *ParseDuration(argv[4]);
  const char* const keeper = getenv("GODWIT_TEST_KEEPER");
  options.keeper_program = keeper != nullptr ? keeper : GODWIT_KEEPER_PROGRAM;
  const char* const silence = getenv("GODWIT_TEST_KEEPER_SILENCE");
  if (silence != nullptr) options.keeper_silence_limit = *ParseDuration(silence);
  return RunAgent(options);
}

int Plain(char** argv) {
  PlainRunOptions options;
  options.run_dir = argv[0];
  options.nproc_per_node = static_cast<uint32_t>(*ParseUint64(argv[1]));
  options.shutdown_timeout = *ParseDuration(argv[2]);
  options.keeper_program = GODWIT_KEEPER_PROGRAM;
  for (char** word = argv + 4; *word != nullptr; ++word) options.argv.emplace_back(*word);
  return RunPlain(options);
}

proto::MasterOrder LeaveWith(int code, const std::string& reason) {
  proto::MasterOrder order;
  order.mutable_leave()->set_exit_code(code);
  order.mutable_leave()->set_reason(reason);
  return order;
}

// Lets the workers of one epoch run until all have ended.
int Master(int argc, char** argv) {
  std::map<std::string, std::string> options;
  proto::MasterOrder start;
  proto::StartEpoch* const epoch = start.mutable_start_epoch();
  for (int i = 0; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--") {
      for (++i; i < argc; ++i) epoch->add_argv(argv[i]);
    } else if (word != "--standalone" && i + 1 < argc) {
      options[word] = argv[++i];
    }
  }
  FakeMaster master;
  if (const Status s = master.Listen(options["--listen"]); !s.ok()) {
    std::fprintf(stderr, "%s\n", s.message().c_str());
    return 78;
  }
  const uint64_t workers = *ParseUint64(options["--workers"]);
  epoch->set_epoch(1);
  epoch->set_world_size(static_cast<uint32_t>(workers));
  for (uint32_t i = 0; i < workers; ++i) {
    proto::SlotRank* const rank = epoch->add_ranks();
    rank->set_slot(i);
    rank->set_rank(i);
  }
  uint64_t ended = 0;
  int code = 0;
  std::string reason = "done";
  while (ended < workers) {
    const Result<proto::AgentReport> report =
        master.Await([](const proto::AgentReport&) { return true; }, Soon());
    if (!report.ok()) return 1;
    if (report->has_hello()) {
      // Workers of an earlier incarnation are found in Hello; a fresh node gets the order.
      if (report->hello().slot_reports_size() == 0) master.Say(start);
    } else if (report->has_worker_exited()) {
      ++ended;
      if (report->worker_exited().exit_code() != 0 || report->worker_exited().signal() != 0) {
        code = 1;
        reason = "rank " + std::to_string(report->worker_exited().rank()) + " failed";
      }
    } else if (report->has_order_failed()) {
      ++ended;
      code = 1;
      reason = report->order_failed().message();
    }
    if (master.AwaitNotice(kNow).ok()) {
      code = 75;
      reason = "told to leave";
      break;
    }
  }
  master.Say(LeaveWith(code, reason));
  master.AwaitDetached(Soon());
  return code;
}

int Main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "agent" && argc == 7) return Agent(argv + 2);
  if (mode == "plain" && argc > 6) return Plain(argv + 2);
  if (mode == "master") return Master(argc - 2, argv + 2);
  std::fprintf(stderr, "launcher_test_agent: unknown mode '%s'\n", mode.c_str());
  return 2;
}

}  // namespace
}  // namespace godwit::testing

int main(int argc, char** argv) { return godwit::testing::Main(argc, argv); }
