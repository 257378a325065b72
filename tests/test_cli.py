"""The command line, run as a person runs it: real processes, their output and exit codes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import real
import typer

from milodo.algorithms import METHODS
from milodo.bench.records import read_records
from milodo.cli.main import app, run, with_options
from milodo.cli.terminal import Terminal
from milodo.errors import InvalidInput
from milodo.learned import LEARNED
from milodo.network.distributed import TIMEOUT
from milodo.status import Status
from milodo.topology import EXAMPLES

COMMANDS = typer.main.get_command(app).commands
NAMES = list(COMMANDS)

EXPERIMENT = """
[problem]
family = "lasso"
n = 5
d = 8
N = 20

[network]
topology = "ring(5)"

[run]
iterations = {iterations}
instances = 4

[tuning]
instances = 2
iterations = 50
points = 4

[[methods]]
name = "prox-ed"

[[methods]]
name = "pg-extra"
"""


def milodo(*arguments, cwd, **options):
    return real.milodo(*arguments, folder=cwd, MILODO_CACHE=str(cwd / "cache"), **options)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "small.toml").write_text(EXPERIMENT.format(iterations=60))
    return tmp_path


def test_help_teaches_and_names_every_command(tmp_path):
    code, out, _ = milodo("--help", cwd=tmp_path)
    assert code == 0
    race, look = {"demo", "init", "bench", "reproduce", "tune", "train", "report", "run"}, {"methods", "optimizers", "topology"}
    assert race | look | {"solve", "node", "secret", "predict"} == set(NAMES)
    assert all(name in out for name in NAMES)


def test_methods_says_a_sentence_about_every_method(capsys, monkeypatch):
    monkeypatch.setattr("milodo.cli.lists.console", Terminal(width=200))
    with pytest.raises(SystemExit, match="0"):
        run(["methods"])
    rows = [line.split("│")[1:-1] for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert [name.strip() for name, _ in rows] == ["auto", *METHODS, *LEARNED]
    assert all(len(sentence.split()) > 3 and sentence.strip().endswith(".") for _, sentence in rows)
    assert len({sentence for _, sentence in rows}) == len(rows)  # each has its own


def test_help_is_right_about_what_it_does_not_import():
    of = {name: {option.name: option.help for option in command.params} for name, command in COMMANDS.items()}
    assert all(example in of["topology"]["name"] for example in EXAMPLES)
    assert all(f"{TIMEOUT:g} unless given" in of[name]["timeout"] for name in ("run", "node"))


QUICK = (
    "--version", "--help", "nosuch", "bench", "bench --nope", "bench dem", "train nosuch.toml", "bench demo --seed x",
    "bench demo --resume --overwrite", "solve", "report a --out b", "node --data a.csv --resume",
    *(f"{name} -h" for name in NAMES),
)  # fmt: skip
"""What needs no computing."""
HEAVY = ("torch", "numpy", "networkx", "matplotlib", "jinja2")
LOADED = """
import sys
from milodo.cli.main import run
for words in sys.stdin.read().splitlines():
    try:
        code = run(words.split())
    except SystemExit as ended:
        code = ended.code
    print("CODE", code, *(name for name in sys.argv[1:] if name in sys.modules))
"""


def loaded_by(commands, heavy, cwd):
    """(exit code, which of the heavy modules are imported) after each command, all in one process."""
    words = [sys.executable, "-c", LOADED, *heavy]
    done = subprocess.run(words, input="\n".join(commands), cwd=cwd, capture_output=True, text=True, timeout=120)
    ends = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("CODE")]
    assert len(ends) == len(commands), done.stderr
    return {command: (int(code), found) for command, (code, *found) in zip(commands, ends, strict=True)}


def test_help_and_wrong_arguments_are_answered_without_importing_what_computes(tmp_path):
    ends = loaded_by(QUICK, HEAVY, tmp_path)
    assert {command: found for command, (_, found) in ends.items() if found} == {}
    assert {command: code for command, (code, _) in ends.items()} == {
        command: 0 if command.split()[-1] in ("--version", "--help", "-h") else 2 for command in QUICK
    }


def test_a_topology_is_shown_and_drawn_without_importing_torch(tmp_path):
    commands = ("topology rnig(3)", "topology ring(10)")
    assert loaded_by(commands[:1], HEAVY, tmp_path)[commands[0]] == (2, ["numpy", "networkx"])
    assert loaded_by(commands[1:], ("torch", "jinja2"), tmp_path)[commands[1]] == (0, [])
    assert (tmp_path / "ring-10.png").stat().st_size > 10_000


def test_bench_tune_and_report_from_a_file_to_a_page(folder):
    code, out, err = milodo("tune", "small.toml", cwd=folder)
    assert code == 0, err
    assert "gamma" in out and "runs/small" in out
    code, out, err = milodo("bench", "small.toml", "--resume", cwd=folder)
    assert code == 0, err
    assert "tune" not in out  # found in the folder
    assert "Prox-ED" in out and "PG-EXTRA" in out and "0.001" in out
    for name in ("records.csv", "run.json", "report.html", "figures"):
        assert (folder / "runs" / "small" / name).exists(), name
    (folder / "runs" / "small" / "report.html").unlink()
    code, out, err = milodo("report", "runs/small", cwd=folder, drawn=True)
    assert code == 0, err
    assert (folder / "runs" / "small" / "report.html").stat().st_size > 10_000


def test_seed_and_dtype_change_the_run(folder):
    assert milodo("bench", "small.toml", "--seed", 3, "--dtype", "float32", "--out", "there", cwd=folder)[0] == 0
    rows = read_records(folder / "there" / "records.csv")
    assert rows[-1].bytes == 4 * rows[-1].floats
    assert min(row.seed for row in rows) == 12_000_000  # four purposes of a million seeds each, before seed 3


def test_topology_prints_facts_and_draws(tmp_path):
    (tmp_path / "[/odd]").mkdir(parents=True)
    code, out, err = milodo("topology", "ring(4)", "--out", "[/odd]", cwd=tmp_path)
    assert code == 0 and (tmp_path / "[/odd]" / "ring-4.png").exists(), err
    code, out, err = milodo("topology", "grid(3x3)", "--out", "grid.svg", cwd=tmp_path, drawn=True)
    assert code == 0, err
    assert "9 nodes, 12 edges, diameter 4" in out and "fastest" in out
    assert "<svg" in (tmp_path / "grid.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("bench", "nosuch.toml"), "no experiment 'nosuch.toml'"),
        (("bench", "dem"), "unknown experiment 'dem'. Did you mean 'demo'?"),
        (("topology", "rnig(3)"), "unknown topology 'rnig'. Did you mean 'ring'?"),
        (("topology", "pairs.txt"), "disconnected"),
        (("report", "nowhere"), "nowhere"),
        (("bench", "small.toml", "--dtype", "float16"), "'dtype' in [run] is 'float16'"),
        (("bench", "small.toml", "--out", "small.toml/run"), "Choose another folder (--out)."),
        (("topology", "ring(3)", "--out", "nowhere/ring.png"), "cannot write to"),
        (("topology", "ring(3)", "--out", "ring.jpg"), "Give a name that ends in .png, .svg, .pdf"),
        (("topology", "erdos_renyi(10000,0.00001)"), "will not be connected"),
        (("bench", "small.toml", "--resume", "--overwrite"), "Choose one of them"),
        (("train", "small.toml"), "small has no [training] table"),
        (("optimizers", "milodo-laso-ring10"), "Did you mean 'milodo-lasso-ring10'?"),
    ],
)
def test_a_mistake_gets_one_sentence_on_stderr_and_exit_code_2(folder, arguments, says):
    (folder / "pairs.txt").write_text("a b\nc d\n")
    code, out, err = milodo(*arguments, cwd=folder)
    assert code == 2
    assert says in err and "Traceback" not in err and err.count("\n") == 1
    assert out == ""


def test_options_are_added_to_a_sentence_also_when_it_became_part_of_another():
    error = InvalidInput("a.toml: it holds a run. Resume it.")
    error.__cause__ = InvalidInput("it holds a run. Resume it.", "resume", "snapshot_every")
    assert with_options(error) == "a.toml: it holds a run. Resume it (--resume, --snapshot-every)."
    assert with_options(InvalidInput("unknown word 'x'. Did you mean 'y'?")) == "unknown word 'x'. Did you mean 'y'?"


def computed(pid):
    """Seconds of a processor that a process has had."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def test_ctrl_c_keeps_the_records_and_says_how_to_go_on(folder):
    (folder / "long.toml").write_text(EXPERIMENT.format(iterations=3_000_000))
    process = real.Process(["-m", "milodo", "bench", "long.toml", "--seed", "3"], real.environment(), folder)
    run = folder / "runs" / "long" / "run.json"
    real.until(lambda: run.exists() and '"reference"' in run.read_text(), process)
    before = computed(process.pid)
    real.until(lambda: computed(process.pid) > before + 0.3, process)  # the race has begun, however busy the machine is
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in err
    assert re.search(r"milodo bench long.toml --seed 3 --out runs/long --resume", err)
    rows = read_records(folder / "runs" / "long" / "records.csv")
    assert Status.INTERRUPTED in {row.status for row in rows} and Status.STEPS not in {row.status for row in rows}


@pytest.mark.parametrize("command", [[], *([name] for name in NAMES)], ids=lambda words: " ".join(words) or "milodo")
def test_h_is_help(command, capsys):
    shown = []
    for flag in ("-h", "--help"):
        with pytest.raises(SystemExit, match="0"):
            run([*command, flag])
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] and "--help" in shown[0] and "-h" in shown[0]
