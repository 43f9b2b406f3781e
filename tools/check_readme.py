#!/usr/bin/env python3
"""Runs the commands of README.md, so that they can't rot.

Each fenced block marked ```sh has a comment on the line before it that says what CI does with it:

  <!-- ci: run -->            run it, with bash -euo pipefail
  <!-- ci: skip: REASON -->   don't

A block without one is a fault. The blocks run in their order in one scratch folder that is removed
afterwards, with a home of their own, the build's programs and examples first on PATH. What a block
leaves running is ended with it.

  tools/check_readme.py [--bin DIR] [--timeout SECONDS] [FILE...]
"""

import argparse
import contextlib
import ctypes
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MARK = re.compile(r"^<!--\s*ci:\s*(.*?)\s*-->$")


@dataclasses.dataclass
class Block:
    line: int  # of the opening fence, from 1
    mark: str  # what stands after "ci:"; empty when there is no such comment
    text: str


def blocks_of(text):
    """The ```sh blocks of a Markdown text."""
    blocks = []
    lines = text.splitlines()
    index = 0
    while index < len(lines):
        fence = re.match(r"^(```+)\s*(\w*)\s*$", lines[index])
        if not fence:
            index += 1
            continue
        end = index + 1
        while end < len(lines) and lines[end].rstrip() != fence.group(1):
            end += 1
        if fence.group(2) in ("sh", "bash", "shell", "console"):
            mark = MARK.match(lines[index - 1].strip()) if index else None
            blocks.append(Block(index + 1, mark.group(1) if mark else "",
                                "\n".join(lines[index + 1:end]) + "\n"))
        index = end + 1
    return blocks


def verdict_of(block):
    """("run", ""), ("skip", reason) or ("fault", what is wrong)."""
    if block.mark == "run":
        return "run", ""
    match = re.match(r"skip:\s*(\S.*)$", block.mark)
    if match:
        return "skip", match.group(1)
    if not block.mark:
        return "fault", "no <!-- ci: run --> or <!-- ci: skip: REASON --> on the line before it"
    return "fault", f"got 'ci: {block.mark}', allowed: 'ci: run', 'ci: skip: REASON'"


def adopt_orphans():
    """From now on orphans among this process's descendants become its children, so that
    end_descendants finds them, in whatever session they are."""
    set_child_subreaper = 36
    if ctypes.CDLL(None, use_errno=True).prctl(set_child_subreaper, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def descendants():
    """The pids of all processes below this one that have not ended."""
    children = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue  # ended meanwhile
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(entry.name))
    found = []
    pending = [os.getpid()]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


def end_descendants(bound_s=10):
    """Kills all processes below this one and waits, bounded, until they have ended."""
    deadline = time.monotonic() + bound_s
    while pids := descendants():
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {pids} do not end")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass


def run_block(block, folder, environment, timeout_s):
    """Runs the block in a session of its own; returns (what went wrong or None, output)."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(["bash", "-euo", "pipefail", "-c", block.text], cwd=folder,
                                   env=environment, stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = process.wait(timeout_s)
            wrong = None if status == 0 else f"exit status {status}"
        except subprocess.TimeoutExpired:
            wrong = f"still running after {timeout_s} s"
        end_descendants()
        process.wait(10)
        output.seek(0)
        return wrong, output.read().decode(errors="replace")


def check_file(path, bin_folder, timeout_s):
    """Runs what `path` asks for; returns (blocks run, skipped, faulty)."""
    run = skipped = faulty = 0
    adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="godwit-readme-") as scratch:
        for private in ("home", "run", "work"):
            pathlib.Path(scratch, private).mkdir(mode=0o700)
        environment = dict(os.environ, PATH=":".join([str(bin_folder), str(bin_folder.parent / "examples"),
                                          os.environ["PATH"]]),
                           HOME=f"{scratch}/home", XDG_RUNTIME_DIR=f"{scratch}/run")
        for block in blocks_of(path.read_text(encoding="utf-8")):
            verdict, why = verdict_of(block)
            if verdict == "skip":
                skipped += 1
                print(f"{path.name}:{block.line}: skipped: {why}")
                continue
            if verdict == "run":
                run += 1
                why, output = run_block(block, f"{scratch}/work", environment, timeout_s)
                if why is None:
                    print(f"{path.name}:{block.line}: ran")
                    continue
                why += ", with the output\n" + "".join(
                    f"  | {line}\n" for line in output.splitlines()[-30:])
            faulty += 1
            print(f"{path.name}:{block.line}: {why}")
    return run, skipped, faulty


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for each block")
    parser.add_argument("files", type=pathlib.Path, nargs="*")
    options = parser.parse_args()
    total = [0, 0, 0]
    for path in options.files or [ROOT / "README.md"]:
        counts = check_file(path, options.bin.resolve(), options.timeout)
        total = [a + b for a, b in zip(total, counts)]
    print("check_readme: {} blocks run, {} skipped, {} faulty".format(*total))
    return 1 if total[2] else 0


if __name__ == "__main__":
    sys.exit(main())
