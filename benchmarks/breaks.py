"""Breaks a running group of processes again and again: kills a node, or stops it so that it hangs, and looks at what is left.

    python benchmarks/breaks.py [TIMES]      10 times unless given; what it printed is kept in docs/records/breaks.txt

Each time: four processes run Prox-ED with snapshots; one of nodes 0 to 3 is broken in the middle; all others must stop with a
message that names it and the snapshot to go on from, exit code 3, no process left, no half-written file; and the resumed run must
end with the records of an undisturbed one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from milodo.bench.records import read_records
from milodo.runtime.snapshots import latest

TIMEOUT = 5.0
EXPERIMENT = """
title = "breaks"
[problem]
family = "lasso"
n = 4
d = 12
N = 10
[network]
topology = "ring(4)"
[run]
iterations = 3000
instances = 2
[[methods]]
name = "prox-ed"
use = "given"
parameters = { gamma = 0.05 }
"""


def milodo(*words: object) -> list[str]:
    return [sys.executable, "-m", "milodo", *map(str, words)]


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def rows(folder: Path) -> list[dict]:
    return [{k: v for k, v in vars(row).items() if k != "seconds"} for row in read_records(folder / "records.csv")]


def break_once(number: int, folder: Path, experiment: Path, expected: list[dict]) -> bool:
    victim, how = number % 4, (signal.SIGKILL, signal.SIGSTOP)[number % 2]
    out = folder / f"run{number}"
    words = milodo("run", experiment, "--out", out, "--snapshot-every", 100, "--timeout", TIMEOUT)
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while (kept := latest(out / "snapshots", 4)) is None or kept[1] < 200:
        assert process.poll() is None
        time.sleep(0.02)
    workers = children(process.pid)
    began = time.monotonic()
    os.kill(workers[victim], how)
    _, error = process.communicate(timeout=120)
    seconds = time.monotonic() - began
    left, half = [pid for pid in workers if alive(pid)], list(out.rglob(".*"))
    named = f"node {victim} (rank {victim})" in error and "go on from iteration" in error
    again = subprocess.run([*words, "--resume"], capture_output=True, text=True, timeout=300)
    same = again.returncode == 0 and rows(out) == expected
    fine = process.returncode == 3 and named and not left and not half and same
    left_behind = f"{len(left)} processes and {len(half)} half files left"
    ended = f"others stopped after {seconds:4.1f} s, exit code {process.returncode}, {left_behind}, resumed equal: {same}"
    print(f"{number + 1:3d}  node {victim} {how.name:8s} {ended}   {'ok' if fine else 'MISSED'}")
    said = error.strip().replace(str(out), "runs/breaks").replace(str(experiment), "breaks.toml")
    print("     " + said.replace("\n", "\n     "), flush=True)
    return fine


def main() -> None:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        experiment = folder / "breaks.toml"
        experiment.write_text(EXPERIMENT)
        subprocess.run(milodo("run", experiment, "--out", folder / "whole"), check=True, capture_output=True)
        expected = rows(folder / "whole")
        fine = [break_once(number, folder, experiment, expected) for number in range(times)]
    print(f"{sum(fine)} of {times} ended as they must")
    sys.exit(0 if all(fine) else 1)


if __name__ == "__main__":
    main()
