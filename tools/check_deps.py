#!/usr/bin/env python3
"""Checks that the folders depend on each other in one direction only.

Reads the #includes of all C++ files and fails on one that the tables below don't allow: an edge
between folders of the project, or a vendor's header outside the folders that may see the vendor.
docs/architecture.md says why; a new edge is a decision, made here.

  tools/check_deps.py [--root DIR]
"""

import argparse
import pathlib
import re
import sys

# The folders with rules of their own; a file belongs to the longest that matches. To each: the
# folders that its files may include (and what is below those). Its own is always allowed.
# A public header <module>/include/... may include base and public headers only. A test may include
# what its own module has in <module>/testing.
ALL = "*"
EDGES = {
    "base": [],
    "control": ["base"],
    "proto": ["base"],
    "ckpt": ["base"],
    "ckpt/include": ["base"],
    "ckpt/format": ["base", "ckpt/include"],
    "ckpt/codec": ["base", "ckpt/include", "ckpt/format"],
    "ckpt/io": ["base", "ckpt/include", "ckpt/format", "ckpt/codec"],
    "ckpt/lineage": ["base", "ckpt/include", "ckpt/format", "ckpt/io", "ckpt/codec"],
    "ckpt/engine": ["base", "ckpt/include", "ckpt/format", "ckpt/io", "ckpt/codec",
                    "ckpt/lineage"],
    "ckpt/cuda": ["base", "ckpt"],
    "ckpt/torch": ["base", "ckpt"],
    "runtime": ["base", "control", "ckpt"],
    "runtime/include": ["base", "ckpt/include"],
    "runtime/torch": ["base", "ckpt", "runtime"],
    "launcher": ["base", "control", "ckpt", "proto"],
    "master": ["base", "ckpt/include", "ckpt/format", "ckpt/io", "ckpt/codec", "ckpt/lineage",
               "proto"],
    "master/core": ["base", "ckpt/include", "ckpt/format", "ckpt/lineage"],
    "master/testing": ["base", "ckpt/include", "ckpt/format", "ckpt/lineage", "master/core"],
    "scheduler": ["base", "proto"],
    "scheduler/policy": ["base"],
    "cli": [ALL],
    "examples": ["base", "ckpt/include", "ckpt/torch", "runtime/include", "runtime/torch"],
    "tests": [ALL],
    "bench": [ALL],
    "fuzz": [ALL],
    "tools": [ALL],
}

# Pairs that the rules of a whole folder would allow, but that stay apart.
FORBIDDEN = [
    # Only what is built with libtorch may see the parts that are.
    ("runtime", "ckpt/torch", ["runtime/torch"]),
    ("runtime", "runtime/torch", ["runtime/torch"]),
    ("launcher", "ckpt/torch", []),
    # The keeper has no RPC.
    ("launcher/keeper", "proto", []),
]

# A vendor's headers, and the folders that may include them. Outside these the vendor is unknown, so
# that no process links what it must not (gRPC beside libtorch), and that a change of vendor is
# local. Tests that span modules may see all.
VENDORS = [
    ("libtorch", r"(torch|ATen|c10)/",
     ["ckpt/torch", "runtime/torch", "examples", "bench"]),
    ("Gloo", r"gloo/", ["runtime/collective/gloo"]),
    ("NCCL", r"nccl\.h", ["runtime/collective/nccl"]),
    ("CUDA", r"(cuda|cuda_runtime|cuda_runtime_api|cuda_bf16|cuda_fp16|cupti)\.h",
     ["ckpt/cuda", "runtime/cuda", "runtime/collective/nccl"]),
    ("gRPC or Protobuf", r"(grpc|grpcpp|google/protobuf)/",
     ["proto", "master", "launcher", "scheduler", "cli", "bench"]),
    ("SQLite", r"sqlite3\.h", ["scheduler/store", "bench"]),
    ("zstd", r"zstd\.h", ["ckpt/codec", "bench"]),
    ("xxHash", r"xxhash\.h|xxh3\.h", ["base", "bench"]),
    ("CLI11", r"CLI/",
     ["cli", "launcher", "master", "scheduler", "examples", "bench", "tools"]),
    ("spdlog", r"spdlog/", ["base"]),
]
# Parts of the folders above that stay pure: no RPC, so that they run in a simulation.
PURE = ["master/core", "master/testing", "scheduler/policy", "launcher/keeper"]

SUFFIXES = {".h", ".cc", ".cu", ".cpp", ".hpp"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
SKIPPED = {"build", ".git", ".venv"}


def within(path, folder):
    return path == folder or path.startswith(folder + "/")


def any_within(path, folders):
    return any(within(path, folder) for folder in folders)


def rule_of(path):
    """The longest folder of EDGES that `path` (from the root, with /) lies in, or None."""
    matching = [folder for folder in EDGES if within(path, folder)]
    return max(matching, key=len, default=None)


def target_of(include):
    """`include` as a path of the tree; a public header's <godwit/m/x.h> is m/include/godwit/m/x.h.
    None when it names nothing of ours."""
    match = re.match(r"godwit/([^/]+)/", include)
    if match and match.group(1) in EDGES:
        return f"{match.group(1)}/include/{include}"
    return include if include.split("/")[0] in EDGES and "/" in include else None


def check_include(source, include):
    """What is wrong with `source` including `include`, as a sentence; None when nothing is."""
    folder = rule_of(source)
    target = target_of(include)
    if folder is None:
        return None  # check_tree names the folder
    if target is not None:
        # A module's own files see all of its parts, but a part sees only what its own rule allows.
        fakes = source.split("/")[0] + "/testing"
        for_tests = source.endswith("_test.cc") and within(target, fakes)
        if (ALL not in EDGES[folder] and not within(target, folder)
                and not any_within(target, EDGES[folder]) and not for_tests):
            allowed = ", ".join(EDGES[folder]) or "nothing else"
            return f"{folder} may not include {target} (allowed: {allowed})"
        for origin, forbidden, excepted in FORBIDDEN:
            if (within(source, origin) and within(target, forbidden)
                    and not any_within(source, excepted)):
                return f"{origin} may not include {forbidden}"
        return None
    for vendor, pattern, allowed in VENDORS:
        if not re.match(pattern, include) or within(source, "tests"):
            continue
        if not any_within(source, allowed):
            return f"{vendor} is seen only by {', '.join(allowed)}"
        if vendor.startswith("gRPC") and any_within(source, PURE):
            return f"{vendor} must stay out of {', '.join(PURE)}"
    return None


def check_tree(root):
    """All faults below `root`, as "file:line: message", and how many files were read."""
    faults = []
    count = 0
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        if path.suffix not in SUFFIXES or relative.parts[0] in SKIPPED or not path.is_file():
            continue
        source = relative.as_posix()
        count += 1
        if len(relative.parts) > 1 and rule_of(source) is None:
            faults.append(f"{source}:1: folder {relative.parts[0]} has no rule in check_deps.py")
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, 1):
            match = INCLUDE.match(line)
            if match:
                fault = check_include(source, match.group(1) or match.group(2))
                if fault:
                    faults.append(f"{source}:{number}: {line.strip()}: {fault}")
    return faults, count


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent)
    faults, count = check_tree(parser.parse_args().root)
    for fault in faults:
        print(fault)
    if count == 0:
        print("check_deps: no C++ file found")
        return 1
    print(f"check_deps: {count} files, {len(faults)} forbidden includes")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
