#!/usr/bin/env python3
"""Reads the project's sources with clang.

Its thread-safety analysis of what base/mutex.h annotates, and its other warnings, all as errors.

Takes the files from a build's compile_commands.json, without tests, generated code and what
includes libtorch (which takes clang half a minute for each file). Nothing is linked.

  tools/check_threads.py --build DIR [--jobs N] [--tidy]

With --tidy, runs clang-tidy (.clang-tidy) over the same files instead.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Flags of g++ that clang doesn't know, or that make it write something.
DROPPED = {"-c", "-o", "-MD", "-MT", "-MF", "-Winvalid-pch"}
WITH_VALUE = {"-o", "-MT", "-MF"}


def clang_command(command, source):
    """The clang command that checks `source`, out of the one that compiles it."""
    words = shlex.split(command)
    # Behind a compiler launcher stands the compiler.
    start = next(i for i, word in enumerate(words)
                 if pathlib.Path(word).name in ("c++", "g++", "clang++"))
    kept = []
    skip = False
    for word in words[start + 1:]:
        if skip:
            skip = False
        elif word in DROPPED:
            skip = word in WITH_VALUE
        elif word != source and not word.startswith("-fsanitize"):
            kept.append(word)
    return ["clang++", *kept, "-fsyntax-only", "-Wall", "-Wextra", "-Wthread-safety",
            "-Wno-missing-field-initializers", "-Wno-unknown-warning-option", "-Werror", source]


def tidy_command(command, source):
    """The clang-tidy command for `source`, out of the one that compiles it."""
    return ["clang-tidy", "--quiet", source, "--", *clang_command(command, source)[1:-1]]


def is_checked(entry, build):
    source = pathlib.Path(entry["file"])
    return (source.suffix == ".cc" and source.is_relative_to(ROOT)
            and not source.is_relative_to(build)
            and not source.stem.endswith("_test") and "/torch/include" not in entry["command"])


def check(entry, command_of):
    result = subprocess.run(command_of(entry["command"], entry["file"]), cwd=entry["directory"],
                            capture_output=True, text=True, check=False, timeout=600)
    return entry["file"], result.returncode, result.stdout + result.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--tidy", action="store_true")
    options = parser.parse_args()
    build = options.build.resolve()
    entries = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    chosen = {entry["file"]: entry for entry in entries if is_checked(entry, build)}
    faulty = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        command_of = tidy_command if options.tidy else clang_command
        results = pool.map(lambda entry: check(entry, command_of), chosen.values())
        for source, status, output in results:
            if status != 0:
                faulty += 1
                print(f"{os.path.relpath(source, ROOT)}: clang finds faults\n{output}")
    print(f"check_threads: {len(chosen)} files, {faulty} with faults")
    return 1 if faulty or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
