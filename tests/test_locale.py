"""Any locale, and any text in somebody's files: nothing computed is lost to a letter, and nothing steers the terminal."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import warnings

import pytest
from real import LIMIT, environment
from rich.markup import escape
from rich.table import Table

from milodo.bench.records import read_records
from milodo.cli.main import run
from milodo.cli.progress import Bars
from milodo.cli.terminal import HIDDEN, Terminal, as_written, complaints, print_whatever_comes, say, visible
from milodo.errors import InvalidInput

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
SITE = "größe,y\u0302,\x1b[31mrot,ziel é\n1,2,0,3\n2,1,1,5\n0,3,1,2\n4,1,0,9\n"
RACE = """
title = "Größe γ"
[problem]
family = "lasso"
n = 3
d = 4
N = 8
[network]
topology = "ring(3)"
[run]
iterations = 20
instances = 2
[[methods]]
name = "prox-ed"
use = "given"
label = "γ \\u001b[31m"
parameters = { gamma = 0.05 }
"""


def test_a_locale_that_knows_ascii_only_loses_nothing(tmp_path):
    """Names in files, on the command line and of folders; the files begin with the mark that some programs put there."""
    for name, more in (("a", ""), ("b", "5,5,0,1\n")):
        (tmp_path / f"{name}.csv").write_text(SITE + more, encoding="utf-8-sig")
    (tmp_path / "race.toml").write_text(RACE, encoding="utf-8-sig")
    solve = ["solve", "--data", "?.csv", "--target", "ziel é", "--graph", "path", "--l1", "0.1", "--out", "größe"]
    bench = ["bench", "race.toml", "--out", "γ"]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "milodo", *words],
            cwd=tmp_path, env=environment(**ASCII), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for words in (solve, bench)
    ]  # fmt: skip
    for process in processes:
        out, err = process.communicate(timeout=LIMIT)
        assert process.returncode == 0, err
        assert out.isascii() and err.isascii() and b"\x1b" not in out + err
    fitted = json.loads((tmp_path / "größe" / "fit.json").read_text(encoding="utf-8"))
    rows = list(csv.reader((tmp_path / "größe" / "coefficients.csv").open(encoding="utf-8", newline="")))
    assert [name for name, _ in rows[1:-1]] == fitted["columns"] == ["größe", "y\u0302", "\x1b[31mrot"]
    assert "--target 'ziel é'" in fitted["command"] and "größe" in fitted["command"]
    assert {row.method for row in read_records(tmp_path / "γ" / "records.csv")} == {"prox-ed (γ \x1b[31m)"}
    assert "Größe γ" in (tmp_path / "γ" / "report.html").read_text(encoding="utf-8")


STEERING = ["\x1b[31m", "\x1b]0;title\x07", "\x9b2J", "\r", "\x08\x08", "\x00", "\x7f", "\t", "\u202e", "[/red]", "[red]", ":x:"]


@pytest.mark.parametrize("text", STEERING, ids=repr)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_what_stands_in_a_file_is_shown_and_not_obeyed(text, encoding):
    """By messages, tables and progress bars alike."""
    screen = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    terminal = Terminal(file=screen, width=200)
    name = f"before{text}after"
    say(terminal, f"a message about {name} in\ntwo lines")
    table = Table(title=escape(name), caption=escape(name))
    table.add_column(escape(name))
    table.add_row(escape(name))
    terminal.print(table)
    with Bars(terminal) as bars:
        bars(name, 1.0, name)
    screen.seek(0)
    shown = screen.read()
    expected = visible(name).encode(encoding, "backslashreplace").decode(encoding)
    assert shown.count(expected) == 7, shown
    assert not HIDDEN.search(shown)
    assert f"a message about {expected} in\ntwo lines\n" in shown


def test_bars_on_a_terminal_show_control_characters_too():
    screen = io.StringIO()
    with Bars(Terminal(file=screen, force_terminal=True, width=200)) as bars:
        bars("race \x1b]0;title\x07", 1.0, "\x1b[8mhidden")
    assert r"race \x1b]0;title\x07" in screen.getvalue() and r"\x1b[8mhidden" in screen.getvalue()
    assert "\x1b]0" not in screen.getvalue() and "\x1b[8m" not in screen.getvalue()


def test_a_message_that_quotes_a_file_cannot_steer_the_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "\x1b[2Jlinks\x07"
    (tmp_path / name).write_text("a b c\n")
    assert run(["topology", name]) == 2
    error = capsys.readouterr().err
    assert r"\x1b[2Jlinks\x07" in error and not HIDDEN.search(error)


def test_warnings_of_libraries_cannot_steer_the_terminal(monkeypatch, capsys):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    print_whatever_comes()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", lambda *args: sys.stderr.write(warnings.formatwarning(*args[:4])))
        warnings.warn("no glyph for \x1b[31m", stacklevel=1)
    assert r"no glyph for \x1b[31m" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["plain", "größe", "\N{GRINNING FACE}"])
def test_a_word_of_the_command_line_is_what_was_typed(text):
    assert as_written(text) == as_written(text.encode("utf-8").decode("ascii", "surrogateescape")) == text


def test_a_word_that_is_not_in_any_encoding_is_still_a_word():
    assert as_written(b"\xff".decode("ascii", "surrogateescape")) == r"\udcff"


def test_a_reader_that_goes_away_does_not_end_the_work(tmp_path):
    """`milodo bench ... | head -1`: what is computed is saved although nobody reads what is said about it."""

    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    terminal = Terminal(file=Gone())
    for _ in range(2):
        say(terminal, "anybody?")


def test_a_message_is_one_sentence_whatever_it_holds(capsys):
    say(complaints, f"milodo: {InvalidInput('unknown [/x] [red]')}")
    assert capsys.readouterr().err == "milodo: unknown [/x] [red]\n"
