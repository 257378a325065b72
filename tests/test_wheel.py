"""What is installed is what a stranger gets: a wheel, in an environment that holds what it asks for and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from real import LIMIT

import milodo

ROOT = Path(__file__).parent.parent
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV", "PIP_", "MILODO"))}


def run(*words: object, cwd: Path, **more: str) -> str:
    done = subprocess.run(list(map(str, words)), cwd=cwd, env=CLEAN | more, capture_output=True, text=True, timeout=2 * LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`python -m build`: an sdist from the source tree, and the wheel from that sdist."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def inside(wheel: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(wheel)


def facts(inside: zipfile.ZipFile):
    (name,) = [name for name in inside.namelist() if name.endswith(".dist-info/METADATA")]
    return Parser().parsestr(inside.read(name).decode())


def asked_for(wheel: zipfile.ZipFile) -> Iterator[str]:
    """The wheel's dependencies and theirs, without extras: what pip would install beside it."""
    queue, seen = [(Requirement(text), "") for text in facts(wheel).get_all("Requires-Dist", [])], set()
    while queue:
        requirement, extra = queue.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        if requirement.name not in seen:
            seen.add(requirement.name)
            yield requirement.name
        needed = [Requirement(text) for text in distribution(requirement.name).requires or []]
        queue += [(each, one) for one in sorted(requirement.extras) for each in needed if each.marker and each.name not in seen]
        queue += [(each, "") for each in needed if each.name not in seen]


@pytest.fixture(scope="module")
def environment(wheel: Path, inside: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel in it, and nothing it does not ask for.

    Its dependencies are links to those of this one, as fetching torch again takes minutes.
    """
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    for name in asked_for(inside):
        for file in distribution(name).files or []:
            if file.parts[0] not in ("..", "__pycache__"):
                link = site / file.parts[0]
                if not link.exists():
                    link.symlink_to(Path(str(distribution(name).locate_file(file.parts[0]))))
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    run(sys.executable, "-m", "pip", "--python", python, "check", cwd=folder)
    return folder


def test_the_wheel_says_what_it_is(inside):
    said = facts(inside)
    assert (said["Name"], said["Version"], said["License-Expression"]) == ("milodo", milodo.__version__, "Apache-2.0")
    assert said["Version"] == "0.2.0"
    extras = set(said.get_all("Provides-Extra", []))
    assert {"sklearn", "train", "data", "docs", "benchopt"} <= extras
    assert any(line.startswith("Paper, https://") for line in said.get_all("Project-URL", []))
    assert "Topic :: Scientific/Engineering :: Mathematics" in said.get_all("Classifier", [])
    names = inside.namelist()
    licences = [name for name in names if ".dist-info/licenses/" in name]
    assert {Path(name).name for name in licences} == {"LICENSE", "plotly-LICENSE.txt"}
    assert inside.read("milodo/CITATION.cff") == (ROOT / "CITATION.cff").read_bytes()
    assert "milodo/py.typed" in names


def test_the_wheel_holds_the_package_and_nothing_else(inside):
    names = set(inside.namelist())
    wanted = {
        path.relative_to(ROOT) for path in (ROOT / "milodo").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }
    assert {path.as_posix() for path in wanted} <= names
    assert {f"milodo/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "experiments").rglob("*.toml")} <= names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"milodo"}
    assert sum(entry.file_size for entry in inside.infolist()) < 20e6


def test_the_demo_runs_where_nothing_but_the_wheel_and_its_dependencies_is(environment, tmp_path):
    where = run(environment / "bin" / "python", "-c", "import milodo; print(milodo.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(environment)
    missing = (
        "import importlib.util as u; print([name for name in ('pytest', 'sklearn', 'sphinx', 'pandas') if u.find_spec(name)])"
    )
    assert run(environment / "bin" / "python", "-c", missing, cwd=tmp_path).strip() == "[]"
    out = run(
        environment / "bin" / "milodo", "demo", "--quick", cwd=tmp_path, MILODO_CACHE=str(tmp_path / "cache"), OMP_NUM_THREADS="1"
    )
    assert "Auto for bytes" in out and "MiLoDo" in out
    folder = tmp_path / "runs" / "demo-quick"
    assert 1e6 < (folder / "report.html").stat().st_size <= 1.5e6
    assert (folder / "figures" / "race.png").stat().st_size > 10_000
