"""Real processes through the command line: the same records as the simulation, and a clean end whatever breaks."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from real import Process, begin, environment, finish, free_port, milodo, start, together, until
from test_sites import CANCER, hospitals, write_csv

from milodo.bench.benchmark import Benchmark
from milodo.bench.records import read_records
from milodo.config import load_experiment
from milodo.runtime.snapshots import latest

EXPERIMENT = """
title = "small"
[problem]
family = "lasso"
n = 4
d = 12
N = 10
[network]
topology = "ring(4)"
{network}
[run]
iterations = {iterations}
instances = 2
{first}
[[methods]]
name = "prox-ed"
use = "given"
parameters = {{ gamma = 0.05 }}
{more}
[report]
gaps = [1.0, 0.1]
"""
DAPG = '[[methods]]\nname = "dapg"\nuse = "given"\nparameters = { eta = 0.05, alpha = 0.1, K = 2 }\n'


SHORT = '[[methods]]\nname = "pg-extra"\nuse = "given"\nparameters = { gamma = 0.05 }\niterations = 40\n'


def experiment(folder, iterations=60, network="", first="", more="", name="small"):
    path = folder / f"{name}.toml"
    path.write_text(EXPERIMENT.format(iterations=iterations, network=network, first=first, more=more))
    return path


def cold(*arguments):
    """`milodo ARGUMENTS` by an interpreter of its own, as are the processes it starts."""
    command = [sys.executable, "-m", "milodo", *map(str, arguments)]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return finish([process])[0]


def children(pid):
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def same(real, simulated):
    """Everything but seconds; losses to rounding."""
    assert len(real) == len(simulated) > 0
    for a, b in zip(real, simulated, strict=True):
        for column in ("method", "instance", "seed", "k", "rounds", "messages", "floats", "bytes", "status"):
            assert getattr(a, column) == getattr(b, column)
        assert a.loss == pytest.approx(b.loss, rel=1e-12) and a.consensus == pytest.approx(b.consensus, rel=1e-6, abs=1e-13)


@pytest.mark.parametrize(
    ("processes", "network"),
    [(4, ""), (2, 'outage = 0.2\nmessages = "float32"')],
    ids=["a process a node", "two nodes each, lossy"],
)
def test_records_of_real_processes_are_those_of_the_simulation(tmp_path, processes, network):
    path = experiment(tmp_path, network=network, more=DAPG)
    words = ("run", path, "--out", tmp_path / "real", "--processes", processes)
    ran = milodo(*words) if processes == 4 else cold(*words)
    assert ran.code == 0, ran.err
    Benchmark(load_experiment(path), tmp_path / "simulated").run()
    same(read_records(tmp_path / "real" / "records.csv"), read_records(tmp_path / "simulated" / "records.csv"))
    run = json.loads((tmp_path / "real" / "run.json").read_text())
    assert (run["runtime"], run["processes"]) == ("distributed", processes)
    assert (tmp_path / "real" / "report.html").exists()
    if processes == 4:  # one report of both
        both = milodo("report", tmp_path / "simulated", tmp_path / "real", "--out", tmp_path / "both")
        assert both.code == 0, both.err
        methods = {record.method for record in read_records(tmp_path / "both" / "records.csv")}
        assert methods == {"prox-ed (given)", "dapg (given)", "prox-ed (given, distributed)", "dapg (given, distributed)"}
        assert "Prox-ED (given, distributed)" in (tmp_path / "both" / "report.html").read_text()


def test_torchrun_starts_the_same(tmp_path):
    path = experiment(tmp_path)
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "3", "--master-port", str(free_port())]
    words += ["-m", "milodo", "run", str(path), "--out", str(tmp_path / "real")]
    (ran,) = finish([Process(words, environment())])
    assert ran.code == 0, ran.err
    Benchmark(load_experiment(path), tmp_path / "simulated").run()
    same(read_records(tmp_path / "real" / "records.csv"), read_records(tmp_path / "simulated" / "records.csv"))
    assert ran.out.count("run Prox-ED") == 1  # progress from rank 0 only


def snapshot(folder, processes):
    """The last iteration of which all have kept their state."""
    kept = latest(folder / "snapshots", processes)
    return -1 if kept is None else kept[1]


def launch_and_break(folder, signal_number, *, timeout):
    """Starts a long run, waits for snapshots of its second method, then breaks node 2; returns how it ended, and when."""
    path = experiment(folder, iterations=400, first=SHORT)
    words = ["run", str(path), "--out", str(folder / "real"), "--snapshot-every", "20", "--timeout", str(timeout)]
    process = Process(["-m", "milodo", *words], environment())
    try:
        until(lambda: snapshot(folder / "real", 4) >= 60, process)
        workers = children(process.pid)
        assert len(workers) == 4
        began = time.monotonic()
        os.kill(workers[2], signal_number)
        _, error = process.communicate()
    finally:
        process.kill()
    return process.returncode, error, time.monotonic() - began, workers


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hanging"])
def test_a_node_that_dies_or_hangs_stops_all_and_the_run_goes_on_from_its_snapshot(tmp_path, kind):
    timeout = 4.0 if kind == signal.SIGSTOP else 200.0
    code, error, seconds, workers = launch_and_break(tmp_path, kind, timeout=timeout)
    assert code == 3, error
    assert "node 2 (rank 2)" in error and "--resume" in error and "go on from iteration" in error and "in iteration" in error
    # Of a node that hangs the first to speak may be its neighbour, or, on a busy machine, who then misses that neighbour.
    assert kind == signal.SIGKILL or f"a timeout of {timeout:g} s" in error or "node 2 (rank 2) hangs or has ended" in error
    assert seconds < 200.0, "a death is seen without waiting for the timeout, and hanging soon after it"
    assert not any(alive(pid) for pid in workers)
    assert not [path for path in (tmp_path / "real").rglob(".*")], "half-written files"
    path = experiment(tmp_path, iterations=400, first=SHORT)
    assert len(list((tmp_path / "real" / "snapshots").iterdir())) == 2, "of the method that was complete, and of the other"
    again = milodo("run", path, "--out", tmp_path / "real", "--snapshot-every", "20", "--resume")
    assert again.code == 0, again.err
    assert not (tmp_path / "real" / "snapshots").exists()
    if kind == signal.SIGKILL:
        whole = milodo("run", path, "--out", tmp_path / "whole")
        assert whole.code == 0
        strip = lambda rows: [{k: v for k, v in vars(row).items() if k != "seconds"} for row in rows]  # noqa: E731
        assert strip(read_records(tmp_path / "real" / "records.csv")) == strip(read_records(tmp_path / "whole" / "records.csv"))


def test_no_process_outlives_its_launcher(tmp_path):
    path = experiment(tmp_path, iterations=100000)
    process = Process(["-m", "milodo", "run", str(path), "--out", str(tmp_path / "real")], environment())
    until((tmp_path / "real" / "run.json").exists, process)  # they have met, and before that asked to die with it
    workers = children(process.pid)
    assert len(workers) == 4
    process.kill()
    process.wait()
    until(lambda: not any(alive(pid) for pid in workers))


def clinics(folder):
    """The breast cancer data at three sites, one node each."""
    for k, rows in enumerate(np.split(np.arange(569), [150, 400])):
        write_csv(folder / f"site-{k}.csv", map(str, CANCER.feature_names), CANCER.data[rows], "target", CANCER.target[rows])


NODE = ["-m", "milodo", "node", "--target", "progression", "--l1", "1", "--standardise"]


WAYS = {
    "moments": (["--target", "progression"], "Moments"),
    "gossip": (["--target", "progression", "--links", "lossy", "--graph", "path"], "Accelerated-ED, 6 bits, coded"),
    "newton": (["--target", "target", "--loss", "logistic"], "Newton on sums"),
}


@pytest.mark.parametrize("way", WAYS)
def test_nodes_that_read_only_their_own_file_find_what_one_process_finds(tmp_path, way):
    options, method = WAYS[way]
    (clinics if "logistic" in options else hospitals)(tmp_path)
    out, here = tmp_path / "fit", tmp_path / "here"
    words = ["node", *options, "--l1", "0.02", "--standardise"]
    ends = together(["-m", "milodo", *words, "--data", str(tmp_path / "site-{rank}.csv"), "--out", str(out)], 3)
    assert milodo("solve", "--data", tmp_path / "site-*.csv", *words[1:], "--out", here).code == 0
    real, simulated = (json.loads((folder / "fit.json").read_text()) for folder in (out, here))
    assert real["method"] == simulated["method"] == method
    # Gossip in 6 bits rounds what differs in its last digit to other symbols: equal to the tolerance, relative to the largest.
    size = max(map(abs, simulated["coefficients"]))
    assert real["coefficients"] == pytest.approx(simulated["coefficients"], abs=1e-8 * size if way == "gossip" else 1e-9)
    assert (real["rounds"], real["iterations"]) == (simulated["rounds"], simulated["iterations"])
    assert real["bytes"] == pytest.approx(simulated["bytes"], rel=2e-3 if way == "gossip" else 0)  # other symbols, other lengths
    assert real["runtime"] == "distributed"
    assert "It will cost" in ends[0].out and "(intercept)" in ends[0].out
    copies = [out, out / "node-1", out / "node-2"]
    saved = [json.loads((folder / "fit.json").read_text()) for folder in copies]
    assert len({(copy["sha256"], str(copy["coefficients"]), copy["intercept"]) for copy in saved}) == 1
    assert read_coefficients(copies[1]) == read_coefficients(copies[2]) == read_coefficients(out)
    for rank, (end, folder) in enumerate(zip(ends, copies, strict=True)):
        assert f"Node {rank} saved its copy of the model in {folder / 'fit.json'}: sha256 {real['sha256']}." in end.out
    assert [site["rows"] for site in real["sites"]] == [site["rows"] for site in simulated["sites"]]


BREAKS = {
    "missing column": ("sex,bmi,y\n1,2,3\n", [], "no column 'progression' to predict"),
    "other columns": (
        "sex,bmi,progression\n1,2,3\n",
        [],
        "node 1's site-1.csv has no columns 'age', 'bp', 's1', 's2', 's3', 's4', 's5', 's6', which node 0's site-0.csv has",
    ),
    "non-numeric target": ("age,sex,bmi,bp,s1,s2,s3,s4,s5,s6,progression\n1,2,3,4,5,6,7,8,9,1,much\n", [], "row 1 is 'much'"),
    "empty file": ("", [], "the file is empty"),
    "wrong world": (None, ["--graph", "ring(5)"], "ring(5) has 5 nodes, but there are 3 sites"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_bad_input_at_one_site_is_one_sentence_from_it_and_a_clean_stop_everywhere(tmp_path, name):
    content, options, said = BREAKS[name]
    hospitals(tmp_path)
    if content is not None:
        (tmp_path / "site-1.csv").write_text(content)
    began = time.monotonic()
    words = [*NODE, "--data", str(tmp_path / "site-{rank}.csv"), *options, "--out", str(tmp_path / "fit"), "--timeout", "200"]
    ends = finish(start(words, 3))
    errors = "\n".join(err for _, _, err in ends if err.strip())
    assert all(code in (2, 3) for code, _, _ in ends), errors
    assert said in errors and errors.count("milodo:") == 1 and "Traceback" not in errors
    assert time.monotonic() - began < 200 and not (tmp_path / "fit").exists()  # nobody waits until the time is up


@pytest.mark.parametrize(
    ("number", "method"), [(signal.SIGKILL, "prox-ed"), (signal.SIGSTOP, "tree-apg")], ids=["killed", "hanging in a sum"]
)
def test_the_others_end_when_the_process_that_holds_the_meeting_point_does_not_answer(tmp_path, number, method):
    """Started by hand rank 0 holds it, and is the root of the tree; here it breaks in the middle."""
    clinics(tmp_path)
    words = ["-m", "milodo", "node", "--data", str(tmp_path / "site-{rank}.csv"), "--target", "target", "--loss", "logistic"]
    words += ["--l1", "0.01", "--standardise", "--out", str(tmp_path / "fit"), "--timeout", "4", "--snapshot-every", "20"]
    words += ["--method", method, "--tolerance", "1e-300"]  # which nobody reaches
    processes = start(words, 3)
    try:
        until(lambda: snapshot(tmp_path / "fit", 3) >= 0, *processes)
        processes[0].send_signal(number)
        ends = finish(processes[1:])
    finally:
        processes[0].kill()
        processes[0].communicate()
    assert all(code == 3 for code, _, _ in ends), ends
    errors = "\n".join(err for _, _, err in ends)
    assert "node 0 (rank 0) did not answer" in errors and "--resume" in errors and "Traceback" not in errors
    assert "go on from iteration" in errors


def test_processes_that_disagree_are_refused_by_name(tmp_path):
    hospitals(tmp_path)
    words = [*NODE, "--data", str(tmp_path / "site-{rank}.csv"), "--out", str(tmp_path / "fit"), "--tolerance"]
    port = free_port()
    ends = finish([begin([*words, "1e-3" if rank == 2 else "1e-9"], rank, 3, port) for rank in range(3)])
    errors = "\n".join(err for _, _, err in ends)
    assert all(code in (2, 3) for code, _, _ in ends)
    assert "node 2 (rank 2) is refused: its tolerance is 0.001, but node 0 (rank 0) has 1e-09" in errors
    assert errors.count("milodo:") == 1


def test_what_is_no_meeting_point_is_one_sentence_without_a_page_of_frames_or_an_abort(tmp_path):
    """Settings that lead nowhere are in test_meeting.py; here a thread still waits in C++ when the process ends."""
    hospitals(tmp_path)
    words = ["-m", "milodo", "node", "--data", str(tmp_path / "site-0.csv"), "--target", "progression", "--timeout", "1"]
    http = ThreadingHTTPServer(("0.0.0.0", 0), BaseHTTPRequestHandler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    with socket.socket() as silent, http:
        silent.bind(("0.0.0.0", 0))
        silent.listen()
        taken, served, closed = silent.getsockname()[1], http.server_address[1], free_port()
        expected = [
            (0, taken, f"port {taken} is in use on this machine"),
            (1, taken, f"something listens at 127.0.0.1:{taken}, but it is no meeting point of milodo"),
            (1, served, f"something listens at 127.0.0.1:{served}, but it is no meeting point of milodo"),
            (1, closed, f"no meeting point at 127.0.0.1:{closed} within 1 s. Is rank 0 running"),
        ]
        ends = finish([begin(words, rank, 3, port) for rank, port, _ in expected])
        http.shutdown()
    for (code, out, err), (_, _, said) in zip(ends, expected, strict=True):
        assert code == 2 and err.startswith(f"milodo: {said}") and err.count("\n") == 1 and not out, (code, err)


def test_a_wrong_world_size_at_one_node_is_said_once_and_ends_all(tmp_path):
    hospitals(tmp_path)
    words = [*NODE, "--data", str(tmp_path / "site-{rank}.csv"), "--out", str(tmp_path / "fit")]
    port = free_port()
    ends = finish([begin(words, rank, 4 if rank == 2 else 3, port) for rank in range(3)])
    errors = "\n".join(err for _, _, err in ends)
    assert all(code in (2, 3) for code, _, _ in ends), errors
    assert re.search(r"WORLD_SIZE is 3 for rank 0.*, but 4 for rank 2", errors) and errors.count("milodo:") == 1, errors


def test_one_node_alone_works(tmp_path):
    hospitals(tmp_path, cuts=())
    together([*NODE, "--data", str(tmp_path / "site-{rank}.csv"), "--graph", "path", "--out", str(tmp_path / "fit")], 1)
    fit = json.loads((tmp_path / "fit" / "fit.json").read_text())
    assert fit["status"] == "CONVERGED" and fit["bytes"] == 0


def test_too_many_processes_are_refused(tmp_path):
    ended = milodo("run", experiment(tmp_path), "--processes", 5, "--out", tmp_path / "real")
    assert ended.code == 2 and "Start between 1 and 4 processes" in ended.err


def test_a_snapshot_of_another_run_is_refused(tmp_path):
    path = experiment(tmp_path, iterations=400, first=SHORT)
    code, error, _, _ = launch_and_break(tmp_path, signal.SIGKILL, timeout=200.0)
    assert code == 3, error
    for file in (tmp_path / "real").glob("snapshots/*/rank1-*.safetensors"):
        file.write_bytes(file.read_bytes()[:100])
    ended = milodo("run", path, "--out", tmp_path / "real", "--snapshot-every", "20", "--resume")
    assert ended.code in (2, 3) and "not a snapshot" in ended.err and ended.err.count("milodo:") == 1


def read_coefficients(folder):
    return {name: float(value) for name, value in list(csv.reader((folder / "coefficients.csv").open()))[1:]}


def test_torchrun_restarts_a_killed_node_and_the_fit_goes_on(tmp_path):
    """--max-restarts: after a kill -9 all come back, find their snapshots, and end where an undisturbed fit ends."""
    clinics(tmp_path)
    options = ["--target", "target", "--loss", "logistic", "--l1", "0.05", "--standardise", "--tolerance", "2e-3"]
    options += ["--method", "prox-ed"]
    out = tmp_path / "fit"
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "3", "--max-restarts", "1", "--master-port", str(free_port())]
    command += ["-m", "milodo", "node", "--data", str(tmp_path / "site-{rank}.csv"), *options]
    command += ["--out", str(out), "--snapshot-every", "50", "--timeout", "60"]
    process = Process(command, environment())
    try:
        until(lambda: snapshot(out, 3) >= 100, process)
        os.kill(children(process.pid)[1], signal.SIGKILL)
        shown, error = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 0, error
    assert milodo("solve", "--data", tmp_path / "site-*.csv", *options, "--out", tmp_path / "here").code == 0
    here, there = read_coefficients(tmp_path / "here"), read_coefficients(out)
    assert there == pytest.approx(here, abs=1e-9)
    fits = [json.loads((folder / "fit.json").read_text()) for folder in (out, tmp_path / "here")]
    assert fits[0]["iterations"] == fits[1]["iterations"]
    assert fits[0]["seconds"] > 0 and "fit" in shown
