"""A scheduler of virtual nodes on this machine, driven through the real `godwit` command.

Used by the demonstration, the process tests and the path benchmark. Everything lives in one private
directory, and every process carries a random tag in its environment, by which it is found again.
"""

import json
import os
import queue
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time

TAG = "GODWIT_SANDBOX_TAG"


class GodwitError(Exception):
    """`godwit` ended with a code that was not expected."""

    def __init__(self, args, code, stderr):
        super().__init__(f"godwit {' '.join(args)}: exit code {code}: {stderr.strip()}")
        self.code = code
        self.stderr = stderr


class Timeout(Exception):
    pass


def wait_for(what, condition, seconds=60.0, pause=0.05):
    """Returns the first true value of condition(); raises Timeout naming `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Timeout(f"waited {seconds:g} s for {what}")
        time.sleep(pause)


class Process:
    """A process of the sandbox, as /proc shows it."""

    def __init__(self, pid, argv, environment):
        self.pid = pid
        self.argv = argv
        self.environment = environment

    @property
    def program(self):
        return os.path.basename(self.argv[0]) if self.argv else ""

    @property
    def role(self):
        """scheduler, master, agent, keeper, worker or other."""
        if self.program == "godwit-keeper":
            return "keeper"
        if self.program == "godwit" and len(self.argv) > 1:
            return self.argv[1]
        if "RANK" in self.environment and "GODWIT_KEEPER_SOCKET" in self.environment:
            return "worker"
        return "other"

    @property
    def job(self):
        if "--job" in self.argv:
            return self.argv[self.argv.index("--job") + 1]
        return self.environment.get("GODWIT_JOB", "")

    @property
    def rank(self):
        return int(self.environment.get("RANK", -1))

    @property
    def node(self):
        if "--node" in self.argv:
            return self.argv[self.argv.index("--node") + 1]
        return ""

    def __repr__(self):
        return f"{self.role} {self.pid} ({' '.join(self.argv)[:120]})"


def read_process(pid):
    """None when the process has ended (a zombie has)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            if f.read().rpartition(b")")[2].split()[0] in (b"Z", b"X"):
                return None
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            argv = [os.fsdecode(word) for word in f.read().split(b"\0")[:-1]]
        with open(f"/proc/{pid}/environ", "rb") as f:
            pairs = [os.fsdecode(entry).partition("=") for entry in f.read().split(b"\0")]
        return Process(pid, argv, {name: value for name, _, value in pairs if name})
    except (FileNotFoundError, ProcessLookupError, PermissionError, IndexError):
        return None


def kill(process_or_pid, sig=signal.SIGKILL):
    pid = process_or_pid.pid if isinstance(process_or_pid, Process) else process_or_pid
    try:
        os.kill(pid, sig)
    except ProcessLookupError:
        pass


def gone(pid):
    return read_process(pid) is None


class EventStream:
    """Follows `godwit events`; keeps all events in order. `on_event` is called on its thread."""

    def __init__(self, cluster, on_event=None):
        args = [cluster.godwit, "events", "-f", "--json"]
        self._on_event = on_event
        self._process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                         stdin=subprocess.DEVNULL, env=cluster.environment,
                                         text=True)
        self._condition = threading.Condition()
        self.events = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        for line in self._process.stdout:
            event = json.loads(line)
            if self._on_event:
                self._on_event(event)
            with self._condition:
                self.events.append(event)
                self._condition.notify_all()
        with self._condition:
            self._condition.notify_all()

    def wait(self, kind, job=None, after=0, seconds=60.0):
        """The first event of this kind (and job) with a number above `after`."""
        def match(event):
            return (event["kind"] == kind and event["number"] > after and
                    (job is None or event["job_id"] == job))

        deadline = time.monotonic() + seconds
        seen = 0
        with self._condition:
            while True:
                for event in self.events[seen:]:
                    if match(event):
                        return event
                seen = len(self.events)
                left = deadline - time.monotonic()
                if left <= 0:
                    kinds = [f"{e['job_id']} {e['kind']}: {e['message']}" for e in self.events[-12:]]
                    raise Timeout(f"waited {seconds:g} s for event '{kind}' of {job or 'any job'}; "
                                  f"the last ones:\n  " + "\n  ".join(kinds))
                self._condition.wait(min(left, 0.5))

    def last_number(self):
        with self._condition:
            return self.events[-1]["number"] if self.events else 0

    def snapshot(self):
        with self._condition:
            return list(self.events)

    def close(self):
        self._process.terminate()
        self._process.wait(10)
        self._thread.join(10)
        self._process.stdout.close()


class Cluster:
    """The sandbox. `bin_dir` holds godwit and godwit-keeper."""

    def __init__(self, bin_dir, nodes="3x1", config=None, directory=None):
        self.bin_dir = os.path.abspath(bin_dir)
        self.godwit = os.path.join(self.bin_dir, "godwit")
        self.nodes = nodes
        # A short path: sockets' names are limited to 107 bytes.
        self.directory = directory or tempfile.mkdtemp(prefix="gw-")
        self.tag = secrets.token_hex(16)
        self.temp = self.path("tmp")
        self.runtime = self.path("run")
        for folder in (self.temp, self.runtime, self.path("home"), self.path("logs")):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        self.address = "unix:" + self.path("run", "s.sock")
        self.state = self.path("state")
        self.config = None
        if config is not None:
            self.config = self.path("cluster.json")
            with open(self.config, "w", encoding="utf-8") as f:
                json.dump(config, f, indent=2)
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith(("GODWIT_", "TORCHELASTIC_", "XDG_"))}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TMPDIR"):
            self.environment.pop(name, None)
        self.environment.update({TAG: self.tag, "TMPDIR": self.temp, "HOME": self.path("home"),
                                 "XDG_RUNTIME_DIR": self.runtime,
                                 "GODWIT_SCHEDULER": self.address})
        self.scheduler = None
        self._starts = 0

    def path(self, *parts):
        return os.path.join(self.directory, *parts)

    # ---- the scheduler ----

    def start_scheduler(self, seconds=30.0, extra=()):
        """Starts it and waits until it answers. Raises GodwitError when it ends instead."""
        args = ["scheduler", "--nodes", self.nodes, "--state-dir", self.state,
                "--listen", self.address, *extra]
        if self.config:
            args += ["--config", self.config]
        self._starts += 1
        log_path = self.path("logs", f"scheduler-{self._starts}.log")
        with open(log_path, "wb") as log:
            process = subprocess.Popen([self.godwit, *args], stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=log, env=self.environment,
                                       cwd=self.directory, text=True)
        lines = queue.Queue()

        def read():
            with process.stdout:
                for line in process.stdout:
                    lines.put(line)
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                process.kill()
                process.wait()
                raise Timeout(f"the scheduler did not listen within {seconds:g} s") from None
            if line is None:
                code = process.wait()
                with open(log_path, encoding="utf-8", errors="replace") as log:
                    raise GodwitError(args, code, log.read())
            if "listening at" in line:
                break
        self.scheduler = process
        return process

    def stop_scheduler(self, sig=signal.SIGTERM, seconds=30.0):
        """Its exit code. Jobs keep running."""
        process, self.scheduler = self.scheduler, None
        process.send_signal(sig)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise Timeout(f"the scheduler did not end within {seconds:g} s") from None

    # ---- the command ----

    def run(self, *args, seconds=60.0, check=True, **kwargs):
        """Runs `godwit ARGS`; returns the finished process."""
        done = subprocess.run([self.godwit, *args], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=seconds, env=self.environment,
                              cwd=self.directory, **kwargs)
        if check and done.returncode != 0:
            raise GodwitError(args, done.returncode, done.stderr)
        return done

    def json(self, *args, **kwargs):
        return json.loads(self.run(*args, "--json", **kwargs).stdout)

    def submit(self, *args):
        """`godwit submit ARGS`, the command after "--" included; returns the job's id."""
        return json.loads(self.run("submit", "--json", *args).stdout)["job_id"]

    def job(self, job):
        return self.json("status", job)

    def jobs(self):
        return {job["job_id"]: job for job in self.json("jobs", "--all")}

    def wait_state(self, job, states, seconds=60.0):
        """Waits until the job is in one of `states` (a name or several); returns it."""
        wanted = (states,) if isinstance(states, str) else tuple(states)
        last = {}

        def reached():
            last.clear()
            last.update(self.job(job))
            return last if last["state"] in wanted else None

        try:
            return dict(wait_for(f"job {job} to be {' or '.join(wanted)}", reached, seconds, 0.2))
        except Timeout as error:
            raise Timeout(f"{error}; it is {last.get('state')}: {last.get('reason')}") from None

    # ---- processes ----

    def processes(self, role=None, job=None, rank=None):
        found = []
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == os.getpid():
                continue
            process = read_process(int(name))
            if process is None or process.environment.get(TAG) != self.tag:
                continue
            if role is not None and process.role != role:
                continue
            if job is not None and process.job != job:
                continue
            if rank is not None and process.rank != rank:
                continue
            found.append(process)
        return sorted(found, key=lambda process: process.pid)

    # ---- what is left ----

    def leftovers(self, seconds=10.0):
        """What a finished cluster should not leave: processes, sockets, shared memory, files in
        temporary folders. Processes get `seconds` to end. A list of descriptions."""
        left = []
        try:
            wait_for("processes to end", lambda: not self.processes(), seconds)
        except Timeout:
            left += [f"process {process}" for process in self.processes()]
        for folder, _, files in os.walk(self.directory):
            for name in files:
                path = os.path.join(folder, name)
                try:
                    mode = os.lstat(path).st_mode
                except FileNotFoundError:
                    continue
                if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
                    left.append(f"socket {path}")
                elif "/tmp/" in path[len(self.directory):]:
                    left.append(f"temporary file {path}")
        for path in self._listening_sockets():
            left.append(f"listening socket {path}")
        for name in os.listdir("/dev/shm"):
            path = os.path.join("/dev/shm", name)
            if self.tag in name or "godwit" in name or name.startswith("gw"):
                left.append(f"shared memory {path}")
        return left

    def _listening_sockets(self):
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as f:
            for line in f:
                path = line.split()[-1]
                if path.startswith(self.directory):
                    yield path

    def kill_all(self):
        """Ends every process of the sandbox; the last resort of a test that failed."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            left = self.processes()
            if not left:
                return
            for process in left:
                kill(process)
            time.sleep(0.05)

    def close(self):
        """Ends what still runs and removes the directory."""
        if self.scheduler is not None:
            self.scheduler.kill()
            self.scheduler.wait()
            self.scheduler = None
        self.kill_all()
        shutil.rmtree(self.directory, ignore_errors=True)
