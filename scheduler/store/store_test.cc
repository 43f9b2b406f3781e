#include "scheduler/store/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "base/temp_dir.h"
#include "base/testing/matchers.h"

namespace godwit {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using ::testing::SizeIs;
using testing::StatusIs;

class StoreTest : public ::testing::Test {
 protected:
  StoreTest() : dir_(TempDir::Create("godwit-store").value()) {}
  std::unique_ptr<Store> Open() {
    auto store = Store::Open(dir_.path());
    EXPECT_THAT(store.status(), IsOk());
    return store.ok() ? std::move(*store) : nullptr;
  }
  static JobRecord Job(uint64_t number) {
    JobRecord job;
    job.id = "job-" + std::to_string(number);
    job.number = number;
    job.spec.set_name("train");
    job.spec.add_argv("./train");
    job.reason = "it's its turn";
    job.attempt = 1;
    job.created_unix_ms = 1'700'000'000'123;
    return job;
  }
  static proto::Event Event(uint64_t number, const std::string& job) {
    proto::Event event;
    event.set_number(number);
    event.set_job_id(job);
    event.set_kind("submitted");
    return event;
  }

  TempDir dir_;
};

TEST_F(StoreTest, EverythingCommittedIsThereAfterReopening) {
  std::string id;
  {
    auto store = Open();
    id = store->id();
    Store::Batch batch;
    batch.jobs.push_back(Job(1));
    batch.jobs[0].expected_step = 0;
    batch.jobs[0].state = JobState::kRunning;
    batch.jobs[0].master.set_step(7);
    batch.jobs[0].stop_requested = true;
    batch.jobs.push_back(Job(2));
    AttemptRecord attempt;
    attempt.job_id = "job-1";
    attempt.attempt = 1;
    attempt.workers = {{"node-0", true}, {"node-1", false}};
    attempt.running = true;
    attempt.deadline_ns = 99;
    attempt.outcome.emplace().set_state("Preempted");
    batch.attempts.push_back(attempt);
    ProcessRecord process;
    process.job_id = "job-1";
    process.attempt = 1;
    process.role = "agent";
    process.node = "node-0";
    process.pid = 4711;
    process.start_time = 12345;
    process.boot_id = "boot";
    batch.processes.push_back(process);
    DirectiveRecord directive;
    directive.job_id = "job-1";
    directive.attempt = 1;
    directive.body.set_number(5);
    directive.body.mutable_notice()->set_id("n5");
    batch.directives.push_back(directive);
    batch.events.push_back(Event(1, "job-1"));
    batch.events.push_back(Event(2, "job-2"));
    proto::NoticeRecord notice;
    notice.set_id("n5");
    batch.notices.emplace_back("job-1", notice);
    proto::FailureRecord failure;
    failure.set_rank(3);
    batch.failures.push_back({"job-1", 1, failure});
    batch.settings.emplace_back("address", "unix:/x");
    ASSERT_OK(store->Commit(batch));
  }
  auto store = Open();
  EXPECT_EQ(store->id(), id);
  ASSERT_OK_AND_ASSIGN(const Store::Contents contents, store->Load());
  ASSERT_THAT(contents.jobs, SizeIs(2));
  EXPECT_EQ(contents.jobs[0].spec.argv(0), "./train");
  EXPECT_EQ(contents.jobs[0].expected_step, 0u);
  EXPECT_EQ(contents.jobs[1].expected_step, std::nullopt);
  EXPECT_EQ(contents.jobs[0].state, JobState::kRunning);
  EXPECT_EQ(contents.jobs[0].master.step(), 7u);
  EXPECT_EQ(contents.jobs[0].created_unix_ms, 1'700'000'000'123u);
  EXPECT_TRUE(contents.jobs[0].stop_requested);
  ASSERT_THAT(contents.attempts, SizeIs(1));
  ASSERT_THAT(contents.attempts[0].workers, SizeIs(2));
  EXPECT_TRUE(contents.attempts[0].workers[0].guaranteed);
  EXPECT_EQ(contents.attempts[0].workers[1].node, "node-1");
  EXPECT_EQ(contents.attempts[0].outcome->state(), "Preempted");
  ASSERT_THAT(contents.processes, SizeIs(1));
  EXPECT_EQ(contents.processes[0].pid, 4711);
  EXPECT_EQ(contents.processes[0].start_time, 12345u);
  ASSERT_THAT(contents.directives, SizeIs(1));
  EXPECT_EQ(contents.directives[0].body.notice().id(), "n5");
  EXPECT_EQ(contents.last_directive, 5u);
  EXPECT_EQ(contents.last_event, 2u);
  ASSERT_OK_AND_ASSIGN(const auto events, store->Events("", 1, 10));
  EXPECT_THAT(events, SizeIs(1));
  ASSERT_OK_AND_ASSIGN(const auto of_one, store->Events("job-1", 0, 10));
  EXPECT_THAT(of_one, SizeIs(1));
  ASSERT_OK_AND_ASSIGN(const auto notices, store->Notices("job-1"));
  EXPECT_THAT(notices, SizeIs(1));
  ASSERT_OK_AND_ASSIGN(const auto failures, store->Failures("job-1"));
  EXPECT_EQ(failures.at(0).rank(), 3u);
  ASSERT_OK_AND_ASSIGN(const std::string address, store->Setting("address"));
  EXPECT_EQ(address, "unix:/x");
}

TEST_F(StoreTest, AnAcknowledgedDirectiveAndAnEndedAttemptAreNotLoadedAgain) {
  auto store = Open();
  Store::Batch batch;
  batch.jobs.push_back(Job(1));
  AttemptRecord attempt;
  attempt.job_id = "job-1";
  attempt.attempt = 1;
  batch.attempts.push_back(attempt);
  DirectiveRecord directive;
  directive.job_id = "job-1";
  directive.attempt = 1;
  directive.body.set_number(1);
  directive.acknowledged = true;
  batch.directives.push_back(directive);
  directive.acknowledged = false;
  directive.body.set_number(2);
  batch.directives.push_back(directive);
  ProcessRecord process;
  process.job_id = "job-1";
  process.attempt = 1;
  process.role = "master";
  batch.processes.push_back(process);
  ASSERT_OK(store->Commit(batch));
  EXPECT_THAT(store->Load()->directives, SizeIs(1));
  EXPECT_THAT(store->Load()->processes, SizeIs(1));
  Store::Batch end;
  attempt.ended = true;
  end.attempts.push_back(attempt);
  ASSERT_OK(store->Commit(end));
  EXPECT_THAT(store->Load()->directives, IsEmpty());
  EXPECT_THAT(store->Load()->processes, IsEmpty());
  EXPECT_EQ(store->Load()->last_directive, 2u) << "numbers are not used again";
}

TEST_F(StoreTest, ABatchIsAllOrNothing) {
  auto store = Open();
  Store::Batch first;
  first.events.push_back(Event(1, ""));
  ASSERT_OK(store->Commit(first));
  Store::Batch second;
  second.jobs.push_back(Job(1));
  second.events.push_back(Event(1, ""));  // taken
  EXPECT_FALSE(store->Commit(second).ok());
  EXPECT_THAT(store->Load()->jobs, IsEmpty());
  second.events[0].set_number(2);
  ASSERT_OK(store->Commit(second));
  EXPECT_THAT(store->Load()->jobs, SizeIs(1));
}

TEST_F(StoreTest, ASecondOwnerIsToldThePidOfTheFirst) {
  auto store = Open();
  EXPECT_THAT(Store::Open(dir_.path()),
              StatusIs(StatusCode::kFailedPrecondition,
                       HasSubstr("in use by the scheduler with pid " + std::to_string(getpid()))));
  store.reset();
  EXPECT_THAT(Store::Open(dir_.path()), IsOk());
}

TEST_F(StoreTest, AnotherSchemaVersionIsRefusedByName) {
  Open().reset();
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(dir_.File("scheduler.db").c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, "PRAGMA user_version=7", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  EXPECT_THAT(Store::Open(dir_.path()),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("schema version 7, allowed: 1")));
}

TEST_F(StoreTest, ADamagedDatabaseIsDataLoss) {
  std::ofstream(dir_.File("scheduler.db")) << std::string(8192, 'x');
  EXPECT_THAT(Store::Open(dir_.path()), StatusIs(StatusCode::kDataLoss, HasSubstr("scheduler.db")));
}

// The child dies without closing anything, as a killed scheduler does.
TEST_F(StoreTest, WhatWasCommittedSurvivesTheProcess) {
  const pid_t child = fork();
  if (child == 0) {
    auto store = Store::Open(dir_.path());
    Store::Batch batch;
    batch.jobs.push_back(Job(1));
    if (!store.ok() || !(*store)->Commit(batch).ok()) _exit(1);
    // Part of a batch that was never committed.
    batch.jobs[0] = Job(2);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  auto store = Open();
  EXPECT_THAT(store->Load()->jobs, SizeIs(1));
}

TEST_F(StoreTest, AFullDiskIsAnErrorThatLosesNothing) {
  auto store = Open();
  Store::Batch batch;
  batch.jobs.push_back(Job(1));
  ASSERT_OK(store->Commit(batch));
  ASSERT_OK(store->LimitPagesForTest(16));
  Store::Batch large;
  large.jobs.push_back(Job(2));
  large.jobs[0].reason = std::string(1 << 20, 'x');
  EXPECT_THAT(store->Commit(large),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("scheduler.db")));
  EXPECT_THAT(store->Load()->jobs, SizeIs(1));
  ASSERT_OK(store->LimitPagesForTest(100000));
  EXPECT_OK(store->Commit(large));
  EXPECT_THAT(store->Load()->jobs, SizeIs(2));
}

}  // namespace
}  // namespace godwit
