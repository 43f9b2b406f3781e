#!/usr/bin/env python3
"""How soon a job obeys a notice, and what the processes beside the workers cost.

  bench/path_bench.py [--bin build/release/bin] [--notices 20] [--json OUT]

A job of two workers on two virtual nodes gets one notice after another. For each the time from the
notice until all ranks stand at the agreed step is set against the longest step of that run; then
memory (PSS, without snapshot memory) and processor time of keeper, agent and master are read while
the job does nothing."""

import argparse
import json
import os
import platform
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tools", "demo_path"))

from cluster import Cluster, wait_for  # noqa: E402

PARKED_ALLOWANCE_MS = 50
PSS_LIMIT_MB = 40
IDLE_CPU_LIMIT = 0.01
IDLE_SECONDS = 20


def quantile(values, q):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def pss_bytes(pid):
    """Proportional set size of a process without mappings of snapshot memory and control pages."""
    total, counted = 0, True
    with open(f"/proc/{pid}/smaps", encoding="utf-8", errors="replace") as f:
        for line in f:
            words = line.split()
            if "-" in words[0] and not words[0].endswith(":"):
                counted = "/memfd:" not in line
            elif words[0] == "Pss:" and counted:
                total += int(words[1]) * 1024
    return total


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat", "rb") as f:
        fields = f.read().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine():
    model = ""
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        for line in f:
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release()}


def measure_notices(cluster, trainer, count, step_ms):
    job = cluster.submit("--name", "notices", "--workers", "2", "--dir", cluster.path("ckpt"), "--",
                         trainer, "--steps", "1000000", "--step-ms", str(step_ms), "--values",
                         str(1 << 20), "--persist-every", "0")
    for n in range(count):
        def running():
            state = cluster.job(job)
            master = state.get("master", {})
            return (state["state"] == "Running" and len(state["notices"]) == n and
                    state["attempt"] == n + 1 and
                    master.get("step", 0) > master.get("resumed_step", 0) + 10)
        wait_for(f"the job to run for the {n + 1}th time", running, 60)
        cluster.run("preempt", job, "--grace", "20s")
        wait_for(f"notice {n + 1} to be recorded",
                 lambda: len(cluster.job(job)["notices"]) > n, 60)
    notices = cluster.job(job)["notices"]
    cluster.run("stop", job)
    cluster.wait_state(job, "Stopped", 60)
    return notices


def measure_idle(cluster, trainer):
    go = cluster.path("go")
    job = cluster.submit("--name", "idle", "--workers", "2", "--dir", cluster.path("idle-ckpt"),
                         "--", trainer, "--steps", "30", "--hold-at", "20", "--hold-until", go)
    wait_for("the job to reach the step that it idles in",
             lambda: cluster.job(job).get("master", {}).get("step", 0) >= 20, 60)
    agents = cluster.processes("agent", job=job)
    node = agents[0].node
    parts = {"agent": agents[0].pid, "master": cluster.processes("master", job=job)[0].pid,
             "keeper": [p for p in cluster.processes("keeper") if node in " ".join(p.argv)][0].pid}
    time.sleep(2)  # the last step's work
    before = {name: cpu_seconds(pid) for name, pid in parts.items()}
    start = time.monotonic()
    time.sleep(IDLE_SECONDS)
    seconds = time.monotonic() - start
    cpu = {name: (cpu_seconds(pid) - before[name]) / seconds for name, pid in parts.items()}
    pss = {name: pss_bytes(pid) for name, pid in parts.items()}
    open(go, "w", encoding="utf-8").close()
    cluster.wait_state(job, "Succeeded", 60)
    return pss, cpu


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default=os.path.join(ROOT, "build", "release", "bin"))
    parser.add_argument("--notices", type=int, default=20)
    parser.add_argument("--step-ms", type=int, default=50)
    parser.add_argument("--json", metavar="OUT")
    options = parser.parse_args()
    trainer = os.path.join(os.path.dirname(os.path.abspath(options.bin)), "tests",
                           "process_trainer")
    cluster = Cluster(options.bin, nodes="2x1")
    try:
        cluster.start_scheduler()
        notices = measure_notices(cluster, trainer, options.notices, options.step_ms)
        pss, cpu = measure_idle(cluster, trainer)
    finally:
        cluster.close()

    over = [(n["parked_ns"] - n["longest_step_ns"]) / 1e6 for n in notices]
    parked = [n["parked_ns"] / 1e6 for n in notices]
    node = [n["released_node_ns"] / 1e6 for n in notices]
    result = {
        "machine": machine(),
        "notices": len(notices),
        "parked_ms": {"p50": quantile(parked, 0.5), "p95": quantile(parked, 0.95),
                      "max": max(parked)},
        "longest_step_ms": {"p50": quantile([n["longest_step_ns"] / 1e6 for n in notices], 0.5)},
        "parked_minus_longest_step_ms": {"p50": quantile(over, 0.5), "p95": quantile(over, 0.95),
                                         "max": max(over)},
        "released_node_ms": {"p50": quantile(node, 0.5), "p95": quantile(node, 0.95)},
        "predicted_over_real": {"p50": quantile([n["predicted_ns"] / max(1, n["released_node_ns"])
                                                 for n in notices], 0.5)},
        "steps_lost": sum(n["steps_lost"] for n in notices),
        "pss_mb": {name: value / 1e6 for name, value in pss.items()},
        "pss_sum_mb": sum(pss.values()) / 1e6,
        "idle_cpu": cpu,
        "idle_cpu_sum": sum(cpu.values()),
    }
    checks = [
        (f"p95 of (notice to all ranks parked) - (longest step) <= {PARKED_ALLOWANCE_MS} ms",
         result["parked_minus_longest_step_ms"]["p95"] <= PARKED_ALLOWANCE_MS,
         f"{result['parked_minus_longest_step_ms']['p95']:.1f} ms"),
        ("no step lost", result["steps_lost"] == 0, str(result["steps_lost"])),
        (f"keeper + agent + master <= {PSS_LIMIT_MB} MB PSS beside snapshots",
         result["pss_sum_mb"] <= PSS_LIMIT_MB,
         ", ".join(f"{k} {v:.1f}" for k, v in result["pss_mb"].items()) +
         f": {result['pss_sum_mb']:.1f} MB"),
        (f"keeper + agent + master <= {IDLE_CPU_LIMIT:.0%} of a core when idle",
         result["idle_cpu_sum"] <= IDLE_CPU_LIMIT, f"{result['idle_cpu_sum']:.2%}"),
    ]
    print(f"{result['machine']['cpu']}, {result['machine']['cores']} cores, Linux "
          f"{result['machine']['kernel']}; {len(notices)} notices")
    print(f"parked after {result['parked_ms']['p50']:.1f} ms (p95 {result['parked_ms']['p95']:.1f})"
          f", longest step {result['longest_step_ms']['p50']:.1f} ms, node released after "
          f"{result['released_node_ms']['p50']:.0f} ms (p95 {result['released_node_ms']['p95']:.0f})"
          f", predicted/real {result['predicted_over_real']['p50']:.2f}")
    for what, ok, got in checks:
        print(f"  {'ok    ' if ok else 'MISSED'}  {what}: {got}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as f:
            json.dump(result, f, indent=2)
    return 0 if all(ok for _, ok, _ in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
