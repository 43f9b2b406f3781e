"""`godwit run` under what a plain machine does to it: signals at any moment, odd environments,
programs that know nothing of it."""

import fcntl
import os
import random
import signal
import subprocess
import tempfile
import time
import unittest

from sandbox import BIN_DIR, TRAINER, wait_for

GODWIT = os.path.join(BIN_DIR, "godwit")


def processes_with(entry):
    """Numbers of the processes that were started with this NAME=value in their environment."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/environ", "rb") as f:
                    if entry.encode() in f.read().split(b"\0"):
                        found.append(int(name))
            except OSError:
                pass
    return found


class RunCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gw-run-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.temp = os.path.join(self.folder, "tmp")
        os.mkdir(self.temp)
        self.mark = f"GODWIT_TEST_RUN={self.folder}"
        self.environment = {k: v for k, v in os.environ.items()
                            if not k.startswith(("GODWIT_", "XDG_"))}
        self.environment.update({"TMPDIR": self.temp, "GODWIT_TEST_RUN": self.folder})
        self.addCleanup(self.end_all)

    def end_all(self):
        for pid in processes_with(self.mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def start(self, *args, **options):
        options = {"env": self.environment, "cwd": self.folder, "stdin": subprocess.DEVNULL,
                   "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
        return subprocess.Popen([GODWIT, "run", *args], **options)

    def run_to_end(self, *args, **options):
        run = self.start(*args, **options)
        out, err = run.communicate(timeout=60)
        return run.returncode, out, err

    def assert_nothing_left(self, seconds=5):
        wait_for("all processes to end", lambda: not processes_with(self.mark), seconds)
        self.assertEqual(os.listdir(self.temp), [])


class SignalTest(RunCase):
    def test_signals_at_any_moment_leave_nothing_behind(self):
        seed = random.randrange(1 << 32)
        print(f"seed {seed}", flush=True)
        draw = random.Random(seed)
        for turn in range(20):
            checkpoints = os.path.join(self.folder, f"ckpt-{turn}")
            run = self.start("--nproc-per-node", "2", "--shutdown-timeout", "5s", "--dir",
                             checkpoints, "--", TRAINER, "--steps", "100000", "--step-ms", "2",
                             "--snapshot-every", "5", "--persist-every", "10",
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            kind = draw.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
            delay = draw.uniform(0, 0.4)
            with self.subTest(turn=turn, kind=kind.name, delay=delay, seed=seed):
                time.sleep(delay)  # the moment itself is what is drawn
                run.send_signal(kind)
                code = run.wait(30)
                if kind == signal.SIGKILL:
                    self.assertEqual(code, -kind)
                    wait_for("all processes to end", lambda: not processes_with(self.mark), 3)
                else:
                    self.assertIn(code, (75, -kind), "left, or ended before it was set up")
                    self.assert_nothing_left()
        # What a launcher could not clean up that was killed before its keeper ran, the next does.
        # A folder that was not locked yet can't be told from one that is about to be.
        self.assertEqual(self.run_to_end("--", "true")[0], 0)
        left = [name for name in os.listdir(self.temp)
                if os.path.exists(os.path.join(self.temp, name, "agent.lock"))]
        self.assertEqual(left, [], f"seed {seed}")

    def test_killed_launcher_takes_its_folder_along(self):
        run = self.start("--", "sh", "-c", "echo up; exec sleep 60")
        self.assertEqual(run.stdout.readline(), "up\n")
        run.kill()
        run.communicate(timeout=60)
        wait_for("the folder to go", lambda: not os.listdir(self.temp), 2)
        self.assert_nothing_left()

    def test_next_run_removes_what_a_run_left_that_was_killed_with_its_keeper(self):
        run = self.start("--", "sh", "-c", "echo up; exec sleep 60")
        self.assertEqual(run.stdout.readline(), "up\n")
        for pid in processes_with(self.mark):
            os.kill(pid, signal.SIGSTOP)
        for pid in processes_with(self.mark):
            os.kill(pid, signal.SIGKILL)
        run.communicate(timeout=60)
        left = os.listdir(self.temp)
        self.assertEqual(len(left), 1)
        # One that lives is left alone, and so are the logs of one that failed.
        alive = os.path.join(self.temp, "godwit-run.alive")
        os.mkdir(alive)
        with open(os.path.join(alive, "agent.lock"), "w", encoding="utf-8") as lock:
            lock.write("1\n")
            lock.flush()
            fcntl.flock(lock, fcntl.LOCK_EX)
            _, _, err = self.run_to_end("--", "false")
            kept = err.splitlines()[-1].split()[-1]
            self.assertEqual(self.run_to_end("--", "true")[0], 0)
            self.assertEqual(sorted(os.listdir(self.temp)),
                             sorted(["godwit-run.alive", os.path.basename(kept)]))

    def test_worker_that_ignores_term_is_ended_when_the_time_is_up(self):
        run = self.start("--shutdown-timeout", "500ms", "--", "sh", "-c",
                         "trap '' TERM INT; echo up; while :; do sleep 0.05; done")
        self.assertEqual(run.stdout.readline(), "up\n")
        began = time.monotonic()
        run.send_signal(signal.SIGTERM)
        _, err = run.communicate(timeout=60)
        self.assertLess(time.monotonic() - began, 5)
        self.assertIn(run.returncode, (75, 76), err)
        wait_for("all processes to end", lambda: not processes_with(self.mark), 5)


class SurroundingsTest(RunCase):
    def test_program_without_the_library_may_end_before_its_peers(self):
        code, out, err = self.run_to_end(
            "--nproc-per-node", "3", "--", "sh", "-c",
            f"if [ $RANK = 0 ]; then : > {self.folder}/first; exit 0; fi; "
            f"while [ ! -e {self.folder}/first ]; do sleep 0.01; done; sleep 0.1; echo late $RANK")
        self.assertEqual((code, err), (0, ""))
        self.assertEqual(sorted(out.splitlines()), ["[1] late 1", "[2] late 2"])
        self.assert_nothing_left()

    def test_rank_that_fails_ends_its_peers(self):
        began = time.monotonic()
        code, _, err = self.run_to_end("--nproc-per-node", "2", "--", "sh", "-c",
                                       "[ $RANK = 0 ] && exit 3; exec sleep 60")
        self.assertEqual(code, 1)
        self.assertIn("rank 0 on node 0 (local) exited with 3", err)
        self.assertNotIn("0 of 0", err)
        self.assertLess(time.monotonic() - began, 30)
        wait_for("all processes to end", lambda: not processes_with(self.mark), 5)

    def test_runs_in_an_empty_environment_and_where_nothing_can_be_written(self):
        done = subprocess.run(["env", "-i", GODWIT, "run", "--", "/bin/sh", "-c", "pwd"],
                              cwd="/proc", capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "/proc\n", ""))

    def test_folders_may_be_deeper_than_a_sockets_address(self):
        deep = os.path.join(self.folder, "d" * 120, "e" * 120)
        os.makedirs(deep)
        self.environment.update({"TMPDIR": deep, "XDG_RUNTIME_DIR": deep})
        self.temp = deep
        trainer = ("--nproc-per-node", "2", "--", TRAINER, "--steps", "5")
        code, out, err = self.run_to_end(*trainer)
        self.assertEqual(code, 0, err)
        self.assertIn("rank 1 of 2 starts", out)
        self.assert_nothing_left()
        code, _, err = self.run_to_end("--run-dir", os.path.join(deep, "run"), *trainer)
        self.assertEqual(code, 0, err)
        self.assertEqual([name for name in os.listdir(os.path.join(deep, "run"))
                          if name.endswith(".sock")], [])

    def test_temporary_folder_that_is_not_there_is_one_clear_line(self):
        self.environment["TMPDIR"] = os.path.join(self.folder, "nowhere")
        code, _, err = self.run_to_end("--", "true")
        self.assertEqual(code, 78)
        self.assertEqual(len(err.splitlines()), 1, err)
        self.assertIn(self.environment["TMPDIR"], err)
        self.assertIn("No such file or directory", err)

    def test_arguments_and_environment_may_be_large_and_need_not_be_text(self):
        self.environment["LARGE"] = "x" * 120_000
        self.environment["LARGER"] = "y" * 120_000
        argument = "\udcff" + "z" * 100_000
        code, out, err = self.run_to_end(
            "--", "sh", "-c", "echo ${#LARGE} ${#LARGER} $# $1", "sh", argument, argument,
            errors="surrogateescape")
        self.assertEqual((code, err), (0, ""))
        self.assertEqual(out, f"120000 120000 2 {argument}\n")

    def test_command_takes_little_time(self):
        """Of its own: start, agent, keeper, master, and their end. Measured: 0.08 s."""
        took = []
        for _ in range(5):
            began = time.monotonic()
            self.assertEqual(self.run_to_end("--", "true")[0], 0)
            took.append(time.monotonic() - began)
        print(f"godwit run -- true: {sorted(took)[2] * 1000:.0f} ms", flush=True)
        self.assertLess(min(took), 1)


if __name__ == "__main__":
    unittest.main()
