#!/usr/bin/env python3
"""Checks that no tracked file holds what doesn't belong into a finished tree.

That is: a note to do something later, a conflict's markers, a path of one person's machine, a line
with spaces at its end. A line that must be (a test of this tool, say) ends in `check_words: ok`.

  tools/check_words.py [--root DIR]
"""

import argparse
import pathlib
import re
import subprocess
import sys

FAULTS = [
    ("a note for later: do it, or say in docs what is not done",
     re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")),  # check_words: ok
    ("a conflict's marker", re.compile(r"^(<{7}|>{7}|={7})( |$)")),
    ("a path of one machine", re.compile(r"(?<![\w.$}])/(home/\w|root/|work/|Users/\w)")),
    ("spaces at the end", re.compile(r"[ \t]+$")),
]
EXCEPTION = "check_words: ok"
# Texts that are not ours, and files whose bytes are the point.
SKIPPED = re.compile(r"(^|/)(LICENSE|testdata/.*|golden/.*)$")


def check_line(line):
    """What is wrong with `line`: a list of sentences."""
    if line.rstrip().endswith(EXCEPTION):
        return []
    return [what for what, pattern in FAULTS if pattern.search(line)]


def tracked_files(root):
    output = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], check=True,
                            capture_output=True, timeout=60).stdout
    return [name for name in output.decode().split("\0") if name]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent)
    root = parser.parse_args().root
    count = 0
    faults = 0
    for name in tracked_files(root):
        path = root / name
        if SKIPPED.search(name) or not path.is_file():
            continue
        data = path.read_bytes()
        if b"\0" in data:
            continue
        count += 1
        for number, line in enumerate(data.decode("utf-8").splitlines(), 1):
            for what in check_line(line):
                faults += 1
                print(f"{name}:{number}: {what}: {line.strip()}")
    print(f"check_words: {count} files, {faults} faults")
    return 1 if faults or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
