"""What can't work is said in one clear line, and what goes wrong on the way ends in a state from
which the job goes on."""

import glob
import json
import os
import shutil
import signal
import subprocess
import unittest

from sandbox import BIN_DIR, Cluster, ClusterTest, GodwitError, TRAINER, solo_digest, wait_for


def corrupt(path, at=0.5):
    """Flips one byte of a file: in the middle, or at another part of its length."""
    with open(path, "r+b") as f:
        f.seek(int(os.path.getsize(path) * at))
        byte = f.read(1)
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte[0] ^ 0x55]))


class ConfigurationTest(unittest.TestCase):
    def start(self, config, nodes="3x1"):
        cluster = Cluster(BIN_DIR, nodes=nodes, config=config)
        self.addCleanup(cluster.close)
        with self.assertRaises(GodwitError) as raised:
            cluster.start_scheduler()
        lines = [line for line in raised.exception.stderr.splitlines()
                 if line.startswith("godwit: ")]
        self.assertEqual(len(lines), 1, raised.exception.stderr)
        self.assertNotEqual(raised.exception.code, 0)
        self.assertEqual(cluster.leftovers(), [])
        return lines[0]

    def test_unknown_key_names_the_nearest_known_one(self):
        line = self.start({"quotas": [{"name": "a", "garanteed": 1}]})
        self.assertIn("garanteed", line)
        self.assertIn("guaranteed", line)

    def test_guarantees_above_the_capacity_are_refused(self):
        line = self.start({"quotas": [{"name": "a", "guaranteed": 2},
                                      {"name": "b", "guaranteed": 2}]})
        self.assertIn("4", line)
        self.assertIn("3", line)

    def test_nodes_that_cannot_be_are_refused(self):
        for nodes in ("3", "0x1", "3x", "axb"):
            line = self.start(None, nodes=nodes)
            self.assertIn(nodes, line)

    def test_file_that_is_missing_is_named(self):
        cluster = Cluster(BIN_DIR)
        self.addCleanup(cluster.close)
        done = cluster.run("scheduler", "--nodes", "1x1", "--config", "/nowhere/cluster.json",
                           "--state-dir", cluster.state, "--listen", cluster.address, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("/nowhere/cluster.json", done.stderr)


class SchedulerTest(ClusterTest):
    NODES = "3x1"
    CONFIG = {"quotas": [{"name": "team-a", "guaranteed": 1, "lendable": False},
                         {"name": "team-b", "guaranteed": 2, "lendable": True}]}

    def test_second_scheduler_on_the_same_store_is_refused_naming_the_first(self):
        self.start()
        done = self.cluster.run("scheduler", "--nodes", "3x1", "--state-dir", self.cluster.state,
                                "--listen", "unix:" + self.cluster.path("run", "second.sock"),
                                check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(str(self.cluster.scheduler.pid), done.stderr)
        # The first one still answers.
        self.assertEqual(self.cluster.json("jobs"), [])

    def test_job_that_can_never_fit_is_refused_saying_why(self):
        self.start()
        for quota, idle, workers in (("team-a", "forbid", "2"), ("team-b", "accept", "4"),
                                     ("team-a", "only", "9:12")):
            done = self.cluster.run("submit", "--quota", quota, "--idle", idle, "--workers",
                                    workers, "--", "true", check=False)
            self.assertNotEqual(done.returncode, 0, (quota, idle, workers))
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertEqual(self.cluster.json("jobs", "--all"), [])

    def test_unknown_quota_names_the_nearest(self):
        self.start()
        done = self.cluster.run("submit", "--quota", "team-c", "--", "true", check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("team-c", done.stderr)
        self.assertIn("team-", done.stderr.replace("team-c", ""))

    def test_unknown_job_is_named_by_each_verb(self):
        self.start()
        for verb in ("status", "explain", "logs", "stop", "preempt", "events"):
            done = self.cluster.run(verb, "nobody", check=False)
            self.assertEqual(done.returncode, 1, verb)
            self.assertIn("nobody", done.stderr)

    def test_tables_and_json_tell_the_same(self):
        self.start()
        quotas = self.cluster.json("quotas")
        self.assertEqual([(q["name"], q["guaranteed"], q["lendable"]) for q in quotas],
                         [("team-a", 1, False), ("team-b", 2, True)])
        table = self.cluster.run("quotas").stdout
        self.assertIn("team-a", table)
        self.assertNotIn("\033", table)
        nodes = self.cluster.json("nodes")
        self.assertEqual([(n["name"], n["slots"], n["used"]) for n in nodes],
                         [(f"node-{i}", 1, 0) for i in range(3)])
        self.assertIn("node-2", self.cluster.run("nodes").stdout)


class ProgramTest(ClusterTest):
    def test_program_that_does_not_exist_fails_the_job_naming_it(self):
        self.start()
        job = self.cluster.submit("--workers", "1", "--", "/nowhere/train")
        state = self.cluster.wait_state(job, ("Failed", "Succeeded"), 60)
        self.assertEqual(state["state"], "Failed")
        self.assertIn("/nowhere/train", state["reason"] + json.dumps(state["failures"]))
        self.assert_clean()

    def test_any_command_can_be_a_job(self):
        self.start()
        job = self.cluster.submit("--workers", "2", "--", "sh", "-c", "echo rank $RANK of "
                                  "$WORLD_SIZE; echo to-stderr >&2")
        self.cluster.wait_state(job, "Succeeded", 60)
        logs = self.cluster.run("logs", job)
        self.assertIn("r0] rank 0 of 2", logs.stdout)
        self.assertIn("r1] rank 1 of 2", logs.stdout)
        self.assertIn("r1] to-stderr", logs.stderr)
        only = self.cluster.run("logs", job, "--rank", "1", "--stream", "out")
        self.assertNotIn("rank 0", only.stdout)
        self.assertEqual(only.stderr, "")
        self.assert_clean()

    def test_submit_wait_returns_the_outcome(self):
        self.start()
        done = self.cluster.run("submit", "--follow", "--", "sh", "-c", "echo hello", check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("hello", done.stdout)
        done = self.cluster.run("submit", "--wait", "--max-restarts", "0", "--", "sh", "-c",
                                "exit 3", check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("exited with 3", done.stderr)
        self.assert_clean()

    def test_name_that_several_jobs_had_means_the_newest(self):
        self.start()
        for _ in range(2):
            self.cluster.run("submit", "--name", "twin", "--wait", "--", "true")
        self.assertEqual(len(self.cluster.jobs()), 2)
        self.assertEqual(self.cluster.json("status", "twin")["job_id"], "job-2")
        self.assert_clean()

    def test_stopped_job_saves_and_ends_as_stopped(self):
        self.start()
        job = self.submit(steps=100000)
        self.wait_step(job, 20)
        self.cluster.run("stop", job, "--reason", "enough")
        state = self.cluster.wait_state(job, ("Stopped", "Failed", "Succeeded"), 60)
        self.assertEqual(state["state"], "Stopped")
        self.cluster.run("ckpt", "verify", self.checkpoints())
        self.assertGreaterEqual(self.cluster.json("ckpt", "show", self.checkpoints())["step"], 20)
        self.assert_clean()


class CheckpointTest(ClusterTest):
    def manifests(self):
        return sorted(glob.glob(os.path.join(self.checkpoints(), "manifests", "*")))

    def packs(self):
        return sorted(glob.glob(os.path.join(self.checkpoints(), "packs", "*", "*.pack")))

    def left_job(self):
        """A job that waits in the queue, having left on a notice: another one holds its nodes."""
        self.events = self.start()
        job = self.submit(steps=200, trainer=("--persist-every", "30"))
        self.wait_step(job, 70)
        blocker = self.cluster.submit("--class", "high", "--workers", "2", "--name", "blocker",
                                      "--", "sh", "-c",
                                      f"while [ ! -e {self.cluster.path('go')} ]; do sleep 0.1; "
                                      "done")
        self.cluster.run("preempt", job, "--grace", "20s")
        self.cluster.wait_state(blocker, "Running", 60)
        return job

    def let_it_go_on(self):
        open(self.cluster.path("go"), "w", encoding="utf-8").close()

    def test_damaged_newest_checkpoint_is_named_by_verify(self):
        self.start()
        job = self.submit()
        self.assert_succeeded(job)
        corrupt(self.packs()[-1])
        done = self.cluster.run("ckpt", "verify", self.checkpoints(), check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("DAMAGED", done.stdout)

    def test_job_whose_checkpoints_are_gone_fails_instead_of_starting_fresh(self):
        job = self.left_job()
        shutil.rmtree(self.checkpoints())
        self.let_it_go_on()
        state = self.cluster.wait_state(job, ("Failed", "Succeeded"), 120)
        self.assertEqual(state["state"], "Failed")
        self.assertIn("step", state["reason"])

    def test_job_whose_newest_checkpoint_is_damaged_says_so(self):
        job = self.left_job()
        newest = os.path.basename(self.manifests()[-1])
        for pack in self.packs():
            if newest in pack:
                corrupt(pack)
        self.let_it_go_on()
        state = self.cluster.wait_state(job, ("Failed", "Succeeded"), 120)
        # It may go back to an older one or give up, but not in silence.
        story = json.dumps(state) + self.cluster.run("events", job).stdout
        self.assertIn(newest, story)

    def test_job_goes_on_from_the_newest_checkpoint_that_is_intact(self):
        """Whether the damage shows when the save is looked at, or when its chunks are read."""
        for at in (0.5, 0.9999):
            with self.subTest(at=at):
                self.tearDown()
                self.doCleanups()
                self.setUp()
                job = self.left_job()
                before, newest = [os.path.basename(path) for path in self.manifests()[-2:]]
                for pack in self.packs():
                    if newest in pack:
                        corrupt(pack, at)
                self.let_it_go_on()
                state = self.assert_succeeded(job, 120)
                self.assertEqual(state["job_restarts"], 0)
                self.assertIn(newest, self.cluster.run("events", job).stdout)
                resumed = [e for e in self.events.snapshot() if e["kind"] == "resumed"][-1]
                step = int(before.split("-")[1][1:])
                self.assertIn(f"from step {step} ", resumed["message"])
                self.assert_whole_in_the_end()

    def assert_whole_in_the_end(self):
        """What the damage cost was done again: the lineage holds each sample once."""
        self.cluster.run("ckpt", "ledger", self.checkpoints(), "--audit", self.audit())
        with open(self.result(), encoding="utf-8") as f:
            self.assertEqual(f.read().strip(),
                             solo_digest(self.cluster.directory, *self.trainer_args))

    def test_full_disk_fails_the_save_and_the_next_one_succeeds(self):
        disk = self.cluster.path("disk")
        os.makedirs(disk)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk],
                                 capture_output=True, text=True, check=False)
        if mounted.returncode != 0:
            self.skipTest(f"cannot mount a small file system: {mounted.stderr.strip()}")
        self.addCleanup(lambda: subprocess.run(["umount", "-l", disk], check=False))
        self.events = self.start()
        checkpoints = os.path.join(disk, "ckpt")
        go = self.cluster.path("go")
        job = self.cluster.submit(
            "--name", "job", "--workers", "1", "--dir", checkpoints, "--", TRAINER, "--steps",
            "150", "--step-ms", "10", "--values", str(1 << 18), "--persist-every", "20",
            "--snapshot-every", "10", "--hold-at", "70", "--hold-until", go)
        # Filled as soon as the first checkpoint is there; the next saves find no room.
        self.events.wait("committed", job)
        filler = os.path.join(disk, "filler")
        with open(filler, "wb") as f:
            try:
                while True:
                    f.write(bytes(1 << 16))
            except OSError:
                pass
        self.events.wait("alarm", job, seconds=30)
        os.unlink(filler)
        last = self.events.last_number()
        open(go, "w", encoding="utf-8").close()
        self.events.wait("committed", job, after=last, seconds=30)
        self.assert_succeeded(job)
        self.cluster.run("ckpt", "verify", checkpoints)
        alarm = [e for e in self.events.snapshot() if e["kind"] == "alarm"][0]
        self.assertIn(disk, alarm["message"])


class PlainRunTest(unittest.TestCase):
    """`godwit run`, without a scheduler."""

    def setUp(self):
        self.cluster = Cluster(BIN_DIR)
        self.addCleanup(self.cluster.close)

    def test_runs_the_workers_and_gives_their_outcome(self):
        done = self.cluster.run("run", "--nproc-per-node", "2", "--", "sh", "-c",
                                "echo rank $RANK of $WORLD_SIZE")
        self.assertIn("rank 0 of 2", done.stdout)
        self.assertIn("rank 1 of 2", done.stdout)
        self.assertEqual(self.cluster.leftovers(), [])

    def test_program_that_does_not_exist_is_one_clear_line(self):
        done = self.cluster.run("run", "--", "/nowhere/train", check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nowhere/train", done.stderr)
        self.assertEqual(self.cluster.leftovers(), [])

    def test_worker_that_dies_is_restarted_and_the_state_is_the_same(self):
        result, other = self.cluster.path("result"), self.cluster.path("other")
        subprocess.run([TRAINER, "--steps", "60", "--result", other], check=True,
                       stdout=subprocess.DEVNULL, timeout=60)
        done = self.cluster.run(
            "run", "--nproc-per-node", "2", "--max-restarts", "2", "--dir",
            self.cluster.path("ckpt"), "--", TRAINER, "--steps", "60", "--step-ms", "20",
            "--exit-at", "33", "--exit-once", self.cluster.path("exited"), "--result", result,
            check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(result, encoding="utf-8") as a, open(other, encoding="utf-8") as b:
            self.assertEqual(a.read(), b.read())
        self.assertEqual(self.cluster.leftovers(), [])

    def test_damaged_newest_checkpoint_costs_the_steps_since_the_one_before(self):
        """And what is saved after it counts at once, though its step is below the damaged one's."""
        for launcher in ([], [self.cluster.godwit, "run", "--nproc-per-node", "2", "--"]):
            with self.subTest(launcher=launcher):
                checkpoints = self.cluster.path(f"ckpt-{len(launcher)}")
                environment = dict(self.cluster.environment, GODWIT_DIR=checkpoints)

                def train(*args):
                    done = subprocess.run(
                        [*launcher, TRAINER, "--dir", checkpoints, *args], env=environment, capture_output=True, text=True, timeout=60,
                        check=False)
                    return done, self.cluster.json("ckpt", "show", checkpoints)

                done, newest = train("--steps", "60", "--persist-every", "20")
                self.assertEqual((done.returncode, newest["step"]), (0, 60), done.stderr)
                for pack in glob.glob(os.path.join(checkpoints, "packs", "*-s0000000060-*", "*")):
                    corrupt(pack)
                done, newest = train("--steps", "100", "--exit-at", "55", "--exit-once",
                                     self.cluster.path(f"exited-{len(launcher)}"),
                                     "--persist-every", "5", "--step-ms", "20")
                self.assertIn("60", done.stderr)
                self.assertIn("passed over" if not launcher else "not chosen", done.stderr)
                self.assertIn(newest["step"], (45, 50), done.stderr)
                done, newest = train("--steps", "100")
                self.assertEqual((done.returncode, newest["step"]), (0, 100), done.stderr)
                self.cluster.run("ckpt", "ledger", checkpoints)

    def test_signal_to_the_launcher_saves_and_says_how_to_go_on(self):
        checkpoints = self.cluster.path("ckpt")
        launcher = subprocess.Popen([self.cluster.godwit, "run", "--nproc-per-node", "2", "--dir",
                                     checkpoints, "--", TRAINER, "--steps", "100000", "--step-ms",
                                     "5", "--persist-every", "20"],
                                    env=self.cluster.environment, cwd=self.cluster.directory,
                                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                    stderr=subprocess.PIPE, text=True)
        wait_for("a checkpoint", lambda: glob.glob(os.path.join(checkpoints, "manifests", "*")), 60)
        # Twice, as timeout(1) does: to the process and to its group.
        launcher.send_signal(signal.SIGINT)
        wait_for("the first to be seen", lambda: "SIGINT" in launcher.stderr.readline(), 60)
        launcher.send_signal(signal.SIGINT)
        # Not communicate(), which would not see what readline() has read ahead.
        errors = launcher.stderr.read()
        launcher.stderr.close()
        self.assertEqual(launcher.wait(60), 75, errors)
        self.assertIn("godwit run: SIGINT: left, no step lost; the same command goes on from there",
                      errors)
        self.assertEqual(self.cluster.leftovers(), [])

    def test_killed_launcher_leaves_nothing_behind(self):
        launcher = subprocess.Popen([self.cluster.godwit, "run", "--nproc-per-node", "2", "--",
                                     TRAINER, "--steps", "100000", "--step-ms", "20"],
                                    env=self.cluster.environment, cwd=self.cluster.directory,
                                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                    stderr=subprocess.DEVNULL)
        wait_for("the workers", lambda: len(self.cluster.processes("worker")) == 2, 30)
        launcher.kill()
        launcher.wait()
        wait_for("everything to end", lambda: not self.cluster.processes(), 5)


if __name__ == "__main__":
    unittest.main()
