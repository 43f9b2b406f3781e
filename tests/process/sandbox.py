"""What the process tests share: a cluster each, a job of the test trainer, and the claims that hold
after any fault. Run through ctest, or by hand:

  GODWIT_BIN_DIR=build/release/bin GODWIT_TRAINER=build/release/tests/process_trainer \\
    python3 tests/process/faults_test.py -v KillTest
"""

import os
import subprocess
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools", "demo_path"))

from cluster import Cluster, EventStream, GodwitError, Timeout, gone, kill, wait_for  # noqa: E402,F401

BIN_DIR = os.environ.get("GODWIT_BIN_DIR", os.path.join(ROOT, "build", "release", "bin"))
TRAINER = os.environ.get("GODWIT_TRAINER",
                         os.path.join(ROOT, "build", "release", "tests", "process_trainer"))

STEPS = 120
STEP_MS = 25

_solo_digests = {}


def solo_digest(directory, *args):
    """The final state's digest of a run that nothing disturbed: alone, without a launcher."""
    if args not in _solo_digests:
        result = os.path.join(directory, "solo-result")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GODWIT_")}
        subprocess.run([TRAINER, *args, "--result", result], check=True, timeout=120,
                       env=environment, stdout=subprocess.DEVNULL)
        with open(result, encoding="utf-8") as f:
            _solo_digests[args] = f.read().strip()
    return _solo_digests[args]


class ClusterTest(unittest.TestCase):
    NODES = "2x1"
    CONFIG = None

    def setUp(self):
        self.cluster = Cluster(BIN_DIR, nodes=self.NODES, config=self.CONFIG)
        self.addCleanup(self.cluster.close)
        self.streams = []
        self.addCleanup(lambda: [stream.close() for stream in self.streams])

    def start(self):
        self.cluster.start_scheduler()
        return self.follow()

    def follow(self):
        stream = EventStream(self.cluster)
        self.streams.append(stream)
        return stream

    # ---- the job ----

    def submit(self, *options, name="job", workers="2", trainer=(), steps=STEPS, step_ms=STEP_MS):
        """A job of the trainer with checkpoints and audit log in folders of its name."""
        self.trainer_args = ("--steps", str(steps))
        return self.cluster.submit(
            "--name", name, "--workers", workers, "--dir", self.checkpoints(name), *options, "--",
            TRAINER, *self.trainer_args, "--step-ms", str(step_ms), "--audit", self.audit(name),
            "--result", self.result(name), *trainer)

    def checkpoints(self, name="job"):
        return self.cluster.path(name + "-ckpt")

    def audit(self, name="job"):
        return self.cluster.path(name + "-audit")

    def result(self, name="job"):
        return self.cluster.path(name + "-result")

    def step(self, job):
        return self.cluster.job(job).get("master", {}).get("step", 0)

    def wait_step(self, job, step, seconds=60):
        wait_for(f"job {job} to reach step {step}",
                 lambda: self.cluster.job(job).get("master", {}).get("step", 0) >= step, seconds)

    def wait_worker(self, job, rank=0, seconds=30):
        found = []

        def look():
            found[:] = self.cluster.processes("worker", job=job, rank=rank)
            return found

        wait_for(f"worker {rank} of {job}", look, seconds)
        return found[0]

    # ---- what must hold in the end ----

    def assert_succeeded(self, job, seconds=90):
        state = self.cluster.wait_state(job, ("Succeeded", "Failed", "Stopped"), seconds)
        if state["state"] != "Succeeded":
            self.fail(f"job {job} is {state['state']}: {state['reason']}\n{self.story(job)}")
        return state

    def assert_whole(self, name="job"):
        """Each sample was used exactly once, all packs verify, and the state is what an undisturbed
        run gives."""
        self.cluster.run("ckpt", "ledger", self.checkpoints(name), "--audit", self.audit(name))
        self.cluster.run("ckpt", "verify", self.checkpoints(name))
        with open(self.result(name), encoding="utf-8") as f:
            self.assertEqual(f.read().strip(),
                             solo_digest(self.cluster.directory, *self.trainer_args))

    def assert_clean(self):
        """Nothing is left once the scheduler has ended."""
        for stream in self.streams:
            stream.close()
        self.streams.clear()
        if self.cluster.scheduler is not None:
            self.assertEqual(self.cluster.stop_scheduler(), 0)
        self.assertEqual(self.cluster.leftovers(), [])

    def story(self, job):
        """What happened, for a failure's message."""
        lines = []
        done = self.cluster.run("events", job, check=False)
        lines.append(done.stdout[-4000:])
        for folder, _, files in os.walk(self.cluster.directory):
            for name in sorted(files):
                if name.endswith((".log", ".err")) and "audit" not in folder:
                    path = os.path.join(folder, name)
                    with open(path, encoding="utf-8", errors="replace") as f:
                        text = f.read()
                    if text.strip():
                        lines.append(f"--- {path}\n{text[-1500:]}")
        return "\n".join(lines)
