"""A SIGKILL of any process, at moments picked by events, costs a job nothing but repeated steps."""

import signal
import unittest

from sandbox import ClusterTest, kill, wait_for


class KillTest(ClusterTest):
    """Kills in a running job of two workers on two nodes."""

    def running_job(self):
        self.events = self.start()
        job = self.submit()
        # A snapshot that is whole on both ranks is in memory by then.
        self.wait_step(job, 25)
        return job

    def workers(self, job):
        return {p.rank: p.pid for p in self.cluster.processes("worker", job=job)}

    def test_killed_worker_is_restarted_from_memory(self):
        job = self.running_job()
        kill(self.wait_worker(job, 1))
        state = self.assert_succeeded(job)
        self.assertEqual(len(state["failures"]), 1, state["failures"])
        failure = state["failures"][0]
        self.assertEqual(failure["signal"], signal.SIGKILL)
        self.assertEqual(failure["rank"], 1)
        self.assertIn("memory", failure["action"])
        self.assertLessEqual(failure["steps_redone"], 20)
        self.assert_whole()
        self.assert_clean()

    def test_worker_that_exits_is_restarted_and_its_last_words_are_recorded(self):
        self.events = self.start()
        job = self.submit(trainer=("--exit-at", "30", "--exit-once", self.cluster.path("exited")))
        state = self.assert_succeeded(job)
        self.assertGreaterEqual(len(state["failures"]), 1)
        self.assertTrue(any("told to exit in step 30" in f["log_tail"] + f["message"]
                            for f in state["failures"]), state["failures"])
        self.assert_whole()
        self.assert_clean()

    def test_job_fails_with_the_reason_when_its_restarts_are_used_up(self):
        self.events = self.start()
        job = self.submit("--max-restarts", "0",
                          trainer=("--exit-at", "30", "--exit-once", self.cluster.path("exited")))
        state = self.cluster.wait_state(job, ("Succeeded", "Failed"), 60)
        self.assertEqual(state["state"], "Failed")
        self.assertIn("exit", state["reason"])
        self.assert_clean()

    def test_killed_agent_comes_back_and_the_workers_never_stop(self):
        job = self.running_job()
        workers = self.workers(job)
        agent = self.cluster.processes("agent", job=job)[0]
        kill(agent)
        wait_for("a new agent", lambda: [p for p in self.cluster.processes("agent", job=job)
                                         if p.node == agent.node and p.pid != agent.pid], 20)
        self.assertEqual(self.workers(job), workers)
        state = self.assert_succeeded(job)
        self.assertEqual(state["failures"], [])
        self.assertEqual(state["attempt"], 1)
        self.assert_whole()
        self.assert_clean()

    def test_killed_keeper_takes_its_workers_along_and_the_job_goes_on(self):
        job = self.running_job()
        keeper = self.cluster.processes("keeper")[0]
        kill(keeper)
        state = self.assert_succeeded(job)
        self.assertGreaterEqual(len(state["failures"]), 1)
        self.assert_whole()
        self.assert_clean()

    def test_killed_master_comes_back_and_the_workers_never_stop(self):
        job = self.running_job()
        workers = self.workers(job)
        master = self.cluster.processes("master", job=job)[0]
        kill(master)
        wait_for("a new master", lambda: [p for p in self.cluster.processes("master", job=job)
                                          if p.pid != master.pid], 20)
        self.assertEqual(self.workers(job), workers)
        state = self.assert_succeeded(job)
        self.assertEqual(state["failures"], [])
        self.assertEqual(state["attempt"], 1)
        self.assert_whole()
        self.assert_clean()

    def test_killed_scheduler_finds_the_running_job_and_keeps_it(self):
        job = self.running_job()
        workers = self.workers(job)
        self.cluster.stop_scheduler(signal.SIGKILL)
        self.assertEqual(self.workers(job), workers)
        self.cluster.start_scheduler()
        self.assertEqual(self.workers(job), workers)
        state = self.assert_succeeded(job)
        self.assertEqual(state["failures"], [])
        self.assertEqual(state["attempt"], 1)
        self.assert_whole()
        self.assert_clean()

    def test_job_that_ended_while_no_scheduler_ran_is_found_succeeded(self):
        job = self.running_job()
        self.cluster.stop_scheduler(signal.SIGKILL)
        wait_for("the workers to end", lambda: not self.workers(job), 60)
        self.cluster.start_scheduler()
        state = self.assert_succeeded(job)
        self.assertEqual(state["attempt"], 1)
        self.assert_whole()
        self.assert_clean()


class KillWhileStartingTest(ClusterTest):
    """The same while the job is being started."""

    def test_killed_master_while_starting(self):
        self.kill_first("master")

    def test_killed_agent_while_starting(self):
        self.kill_first("agent")

    def test_killed_keeper_while_starting(self):
        self.kill_first("keeper")

    def test_killed_worker_while_starting(self):
        self.kill_first("worker")

    def test_killed_scheduler_while_starting(self):
        self.events = self.start()
        job = self.submit()
        wait_for("any process of the job", lambda: self.cluster.processes(job=job), 20, pause=0.005)
        self.cluster.stop_scheduler(signal.SIGKILL)
        self.cluster.start_scheduler()
        self.assert_succeeded(job)
        self.assert_whole()
        self.assert_clean()

    def kill_first(self, role):
        """Kills the first process of this role as soon as it is seen."""
        self.events = self.start()
        job = self.submit()
        found = []

        def look():
            found[:] = self.cluster.processes(role)
            return found

        wait_for(f"the first {role}", look, 20, pause=0.005)
        kill(found[0])
        self.assert_succeeded(job)
        self.assert_whole()
        self.assert_clean()


class KillDuringNoticeTest(ClusterTest):
    """The same while a job obeys a notice: its workers are held in a step, so that the notice can't
    be over before the kill."""

    HELD_STEP = 33  # no snapshot is due at it

    def noticed_job(self, moment="ack"):
        self.events = self.start()
        self.go = self.cluster.path("go")
        job = self.submit(trainer=("--hold-at", str(self.HELD_STEP), "--hold-until", self.go))
        self.wait_step(job, self.HELD_STEP)
        self.cluster.run("preempt", job, "--grace", "30s")
        self.events.wait(moment, job)
        return job

    def kill_and_wait_for_the_next(self, role, job):
        victim = self.cluster.processes(role, job=job)[0]
        kill(victim)
        wait_for(f"a new {role}",
                 lambda: [p for p in self.cluster.processes(role, job=job)
                          if p.node == victim.node and p.pid != victim.pid], 20)

    def let_go(self):
        open(self.go, "w", encoding="utf-8").close()

    def finish(self, job):
        """The notice was obeyed at the step that the workers were held in, or soon after: whoever
        was killed may not have closed the gates yet when they were let go. Nothing was lost."""
        state = self.assert_succeeded(job, 120)
        self.assertEqual(len(state["notices"]), 1, state["notices"])
        notice = state["notices"][0]
        self.assertGreaterEqual(notice["agreed_step"], self.HELD_STEP, notice)
        self.assertEqual(notice["safe_step"], notice["agreed_step"], notice)
        self.assertEqual(notice["steps_lost"], 0, notice)
        self.assertTrue(notice["in_time"], notice)
        self.assertEqual(state["preemptions"], 1)
        self.assertEqual(state["job_restarts"], 0)
        self.assert_whole()
        self.assert_clean()

    def test_nothing_is_lost_without_a_fault(self):
        job = self.noticed_job()
        self.let_go()
        self.finish(job)

    def test_killed_master_goes_on_with_the_notice_that_it_had_acknowledged(self):
        job = self.noticed_job()
        self.kill_and_wait_for_the_next("master", job)
        self.let_go()
        self.finish(job)

    def test_killed_master_hears_again_of_the_notice_that_it_had_not_acknowledged(self):
        job = self.noticed_job(moment="notice")
        self.kill_and_wait_for_the_next("master", job)
        self.events.wait("ack", job)
        self.let_go()
        self.finish(job)

    def test_killed_agent_goes_on_with_the_notice(self):
        job = self.noticed_job()
        self.kill_and_wait_for_the_next("agent", job)
        self.let_go()
        self.finish(job)

    def test_killed_scheduler_goes_on_with_the_notice(self):
        job = self.noticed_job()
        self.cluster.stop_scheduler(signal.SIGKILL)
        self.cluster.start_scheduler()
        self.let_go()
        self.finish(job)

    def test_killed_worker_costs_at_most_the_steps_since_the_last_snapshot(self):
        job = self.noticed_job()
        kill(self.cluster.processes("worker", job=job)[0])
        self.finish_with_loss(job)

    def test_killed_keeper_costs_at_most_the_steps_since_the_last_snapshot(self):
        job = self.noticed_job()
        kill(self.cluster.processes("keeper")[0])
        self.finish_with_loss(job)

    def finish_with_loss(self, job):
        self.let_go()
        state = self.assert_succeeded(job, 120)
        for notice in state["notices"]:
            self.assertLessEqual(notice["steps_lost"], 20, notice)
            self.assertGreaterEqual(notice["safe_step"], self.HELD_STEP - 20, notice)
        self.assert_whole()
        self.assert_clean()


class AgentAndKeeperTest(ClusterTest):
    def test_a_whole_node_that_is_killed_is_started_again(self):
        self.events = self.start()
        job = self.submit("--max-job-restarts", "2")
        self.wait_step(job, 50)
        agent = self.cluster.processes("agent", job=job)[0]
        keepers = [p for p in self.cluster.processes("keeper") if agent.node in " ".join(p.argv)]
        kill(agent)
        for keeper in keepers:
            kill(keeper)
        self.assert_succeeded(job, 120)
        self.assert_whole()
        self.assert_clean()

    def test_everything_of_a_job_killed_at_once_goes_on_from_storage(self):
        self.events = self.start()
        job = self.submit("--max-job-restarts", "3")
        self.wait_step(job, 60)
        for role in ("master", "agent", "keeper", "worker"):
            for process in self.cluster.processes(role):
                kill(process)
        self.assert_succeeded(job, 120)
        self.assert_whole()
        self.assert_clean()


if __name__ == "__main__":
    unittest.main()
