#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <sstream>

#include "base/process.h"
#include "base/real_file_system.h"
#include "base/temp_dir.h"
#include "base/testing/matchers.h"
#include "ckpt/engine/restore.h"
#include "ckpt/lineage/checkpoint_dir.h"
#include "runtime/sampler_ledger.h"

namespace godwit {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;

constexpr Duration kHang = std::chrono::seconds(150);

struct Outcome {
  ExitStatus status;
  std::string out;
};

class GptTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::make_unique<TempDir>(*TempDir::Create("gpt"));
    // Text with something to learn in it.
    std::ofstream text(dir_->File("text"));
    for (int i = 0; i < 4000; ++i) text << "line " << i << " of the text\n";
  }

  // Runs the program; SIGKILL ends it once `kill_when` holds (looked at after each piece of
  // output).
  Outcome Gpt(std::vector<std::string> args, const std::function<bool()>& kill_when = {}) {
    int fds[2];
    EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
    UniqueFd in(fds[0]), out(fds[1]);
    SpawnOptions options;
    options.argv = {GODWIT_GPT_PATH,
                    "--data",
                    dir_->File("text"),
                    "--width",
                    "32",
                    "--layers",
                    "1",
                    "--heads",
                    "2",
                    "--context",
                    "32",
                    "--eval-samples",
                    "8",
                    "--persist-every",
                    "4"};
    options.argv.insert(options.argv.end(), args.begin(), args.end());
    options.stdout_fd = options.stderr_fd = out.get();
    Outcome outcome;
    auto child = Spawn(options);
    EXPECT_THAT(child, IsOk());
    if (!child.ok()) return outcome;
    out.Reset();
    const MonotonicTime deadline = MonotonicClock::now() + kHang;
    bool killed = false;
    for (;;) {
      pollfd p{in.get(), POLLIN, 0};
      if (poll(&p, 1, 1000) == 0) {
        if (MonotonicClock::now() < deadline) continue;
        ADD_FAILURE() << "gpt hangs: " << outcome.out;
        EXPECT_THAT(child->Signal(SIGKILL), IsOk());
        break;
      }
      char buffer[4096];
      const ssize_t n = read(in.get(), buffer, sizeof(buffer));
      if (n <= 0) break;
      outcome.out.append(buffer, static_cast<size_t>(n));
      if (!killed && kill_when && kill_when()) {
        killed = true;
        EXPECT_THAT(child->Signal(SIGKILL), IsOk());
      }
    }
    auto status = child->Wait(deadline);
    EXPECT_THAT(status, IsOk());
    if (status.ok()) outcome.status = *status;
    return outcome;
  }

  static std::string FinalLoss(const std::string& out) {
    const size_t at = out.find("done: held-out loss ");
    return at == std::string::npos ? "none in: " + out : out.substr(at);
  }

  std::unique_ptr<TempDir> dir_;
};

TEST_F(GptTest, LearnsAndResumesExactlyAfterSigkill) {
  const Outcome whole = Gpt({"--steps", "100", "--dir", dir_->File("a"), "--loss-log",
                             dir_->File("a.csv"), "--eval-every", "50"});
  ASSERT_TRUE(whole.status.success()) << whole.out;
  // Of the CSV: step,loss,held_out_loss,...
  std::ifstream csv(dir_->File("a.csv"));
  std::string line;
  std::vector<double> held_out;
  while (std::getline(csv, line)) {
    std::istringstream fields(line);
    std::string step, loss, held;
    std::getline(fields, step, ',');
    std::getline(fields, loss, ',');
    std::getline(fields, held, ',');
    if (!held.empty() && step != "step") held_out.push_back(std::stod(held));
  }
  ASSERT_EQ(held_out.size(), 2u);
  EXPECT_LT(held_out.back(), held_out.front() - 0.1);

  FileSystem& fs = RealFileSystem();
  const std::string dir = dir_->File("b");
  const std::vector<std::string> args = {"--steps", "100",     "--dir",
                                         dir,       "--audit", dir_->File("audit")};
  std::vector<std::string> slow = args;
  slow.insert(slow.end(), {"--step-ms", "50"});
  // Saves are written at idle priority: wait for one, then for work beyond it that will be lost.
  int lines_since_save = 0;
  const Outcome killed = Gpt(slow, [&] {
    const auto saves = fs.List(JoinPath(dir, "manifests"));
    return saves.ok() && !saves->empty() && ++lines_since_save == 3;
  });
  EXPECT_EQ(killed.status.signal, SIGKILL);
  const Outcome resumed = Gpt(args);
  ASSERT_TRUE(resumed.status.success()) << resumed.out;
  EXPECT_THAT(resumed.out, HasSubstr("goes on at step"));
  EXPECT_EQ(FinalLoss(resumed.out), FinalLoss(whole.out));

  // Each sample once, by the ledger and by what was really read.
  const auto found = ckpt::FindNewest(fs, dir);
  ASSERT_THAT(found, IsOk());
  ASSERT_TRUE(found->newest.has_value());
  EXPECT_EQ(found->newest->save.step, 100u);
  const auto blob = ckpt::ReadBlob(fs, dir, found->newest->save, "sampler", 0);
  ASSERT_THAT(blob, IsOk());
  const auto ledger = ParseLedger(*blob);
  ASSERT_THAT(ledger, IsOk());
  EXPECT_THAT(CheckLedger(*ledger), IsOk());
  const auto audit = CheckAudit(fs, *ledger, dir_->File("audit"));
  ASSERT_THAT(audit, IsOk());
  EXPECT_EQ(audit->steps, 100u);
  EXPECT_GT(audit->redone_lines, 0u);
}

TEST_F(GptTest, MistakesAreOneLineOnStderr) {
  const Outcome option = Gpt({"--stepz", "3"});
  EXPECT_EQ(option.status.code, 2);
  EXPECT_THAT(option.out, HasSubstr("--stepz"));
  EXPECT_EQ(std::count(option.out.begin(), option.out.end(), '\n'), 1);
  const Outcome data = Gpt({"--data", dir_->File("nothing"), "--dir", dir_->File("c")});
  EXPECT_EQ(data.status.code, 78);
  EXPECT_THAT(data.out, HasSubstr("nothing"));
  EXPECT_EQ(std::count(data.out.begin(), data.out.end(), '\n'), 1);
}

}  // namespace
}  // namespace godwit
