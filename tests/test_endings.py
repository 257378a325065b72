"""How a command ends before its end: refused because another writes there, stopped by its user, left by its neighbours."""

from __future__ import annotations

import errno
import fcntl
import re
import subprocess
import sys

import pytest
from real import free_port
from test_training import STAGES, TINY

from milodo import files
from milodo.cli import main
from milodo.errors import InvalidInput, Stopped
from milodo.files import LOCK, locked

RACE = '[run]\niterations = 20\ninstances = 2\n[[methods]]\nname = "prox-ed"\nuse = "given"\nparameters = { gamma = 0.05 }\n'
HOLD = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
"""A process that is alone in a folder, written without milodo."""
COMMANDS = {
    "bench": ["bench", "tiny.toml", "--overwrite"],
    "tune": ["tune", "tiny.toml", "--overwrite"],
    "train": ["train", "tiny.toml", "--overwrite"],
    "run": ["run", "tiny.toml", "--overwrite"],
    "solve": ["solve", "--data", "[ab].csv", "--graph", "path"],
    "node": ["node", "--data", "a.csv", "--graph", "path"],
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(files, "PATIENCE", 0.0)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An experiment and data of two sites in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILODO_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tiny.toml").write_text(TINY.format(training="") + STAGES.format(epochs=1) + RACE)
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("x,y\n1,2\n2,3\n3,5\n")
    return tmp_path


@pytest.fixture
def alone(monkeypatch):
    """This process is one of one, as torchrun would start it."""
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": free_port(), "TORCH_GLOO_LAZY_INIT": 1}.items():
        monkeypatch.setenv(name, str(value))


@pytest.fixture
def other(here):
    """Another process that holds the folder `out`."""
    (here / "out").mkdir()
    words = [sys.executable, "-c", HOLD, str(here / "out" / LOCK)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_does_not_write_where_another_one_does(here, other, name, capsys):
    assert main.run([*COMMANDS[name], "--out", "out"]) == 2
    error = capsys.readouterr().err
    assert "another milodo is writing to 'out'" in error and "--out" in error and error.count("\n") == 1
    assert [path.name for path in (here / "out").iterdir()] == [LOCK]


def test_a_killed_process_leaves_no_lock(here, other):
    with pytest.raises(InvalidInput), locked(here / "out"):
        pass
    other.kill()
    other.wait()
    with locked(here / "out"):
        pass
    assert not list((here / "out").iterdir())


def test_a_folder_is_free_again_however_its_writer_ended_and_no_trace_is_left(tmp_path):
    out = tmp_path / "a" / "b"
    with pytest.raises(RuntimeError), locked(out):
        with pytest.raises(InvalidInput, match=r"process \d+ on "), locked(out):
            pass
        raise RuntimeError
    assert not out.exists()  # nothing was written to it
    with locked(out):
        (out / "result").touch()
    assert [path.name for path in out.iterdir()] == ["result"]


@pytest.mark.parametrize("kind", ["a drive without locks", "a lock file of somebody else's"])
def test_nobody_is_refused_where_there_are_no_locks(tmp_path, monkeypatch, kind):
    if kind == "a drive without locks":

        def refuse(*_):
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "flock", refuse)
    else:
        (tmp_path / LOCK).mkdir()
    with locked(tmp_path), locked(tmp_path):
        (tmp_path / "result").touch()


def ends(words, code):
    with pytest.raises(SystemExit, match=str(code)):
        main.run([*words])


@pytest.mark.usefixtures("alone", "undrawn")
@pytest.mark.parametrize("command", ["train", "bench", "run"])
def test_ctrl_c_while_figures_are_drawn_loses_nothing_and_says_how_to_draw_them(here, command, monkeypatch, capsys):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as drawing:
        drawing.setattr("milodo.report.html.write_report", stop)
        drawing.setattr("milodo.report.training.draw_training", stop)
        ends([command, "tiny.toml", "--out", "there"], 130)
        error = capsys.readouterr().err
        assert "All results are kept in there" in error and "Traceback" not in error
        again = re.search("milodo (report there)\n", error)
        assert again
        ends(again[1].split(), 130)  # and so does the command that is advised
        assert "milodo report there\n" in capsys.readouterr().err
    if command == "bench":  # what it leaves is what run leaves
        return
    ends(again[1].split(), 0)
    assert (here / "there" / ("training.png" if command == "train" else "report.html")).exists()


@pytest.mark.usefixtures("alone", "undrawn")
@pytest.mark.parametrize("command", ["run tiny.toml", "node --data a.csv"])
@pytest.mark.parametrize("snapshots", ["", " --snapshot-every 5"], ids=["without snapshots", "with"])
def test_what_is_advised_after_a_loss_is_not_refused(here, command, snapshots, monkeypatch, capsys):
    def lose(*_, **__):
        raise Stopped("node 1 (rank 1) did not answer")

    words = f"{command} --out there{snapshots}"
    monkeypatch.setattr(sys, "argv", ["milodo", *words.split()])
    with monkeypatch.context() as broken:
        broken.setattr("milodo.runtime.group.joined", lose)
        assert main.run(words.split()) == 3
    advised = re.search(r"^To .*: milodo (.*)$", capsys.readouterr().err, re.MULTILINE)
    assert advised
    assert ("--resume" in advised[1]) == ("run" in command or bool(snapshots))
    ends(advised[1].split(), 0)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("gamma", "code"), [("1e4", 1), ("0.05", 0)])
@pytest.mark.parametrize("how", ["by torchrun", "by the command"])
def test_a_real_run_that_diverged_does_not_end_well(here, gamma, code, how, monkeypatch, capfd, request):
    if how == "by torchrun":
        request.getfixturevalue("alone")
    file = here / "tiny.toml"
    file.write_text(file.read_text().replace("gamma = 0.05", f"gamma = {gamma}").replace("iterations = 20", "iterations = 60"))
    ends(["run", "tiny.toml", "--out", "there", *(["--processes", "1"] if how == "by the command" else [])], code)
    assert ("milodo: diverged: prox-ed" in capfd.readouterr().err) == (code == 1)
