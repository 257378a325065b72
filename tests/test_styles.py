"""One colour a method, in every figure: laws of the table, over everything registered and every experiment that ships."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest

from milodo.algorithms import METHODS
from milodo.config.experiment import read_content
from milodo.config.tables import AUTO
from milodo.learned import LEARNED
from milodo.report.styles import METHOD_COLOURS, PALETTE, styled

REGISTERED = [*METHODS, *LEARNED, AUTO]
EXPERIMENTS = sorted((Path(__file__).parent.parent / "experiments").glob("*/*.toml"))
WHITE, DARK = "#ffffff", "#1a1f26"


def linear(colour: str) -> np.ndarray:
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(colour: str) -> np.ndarray:
    """CIE L*a*b* of an sRGB colour, in which distances are about as large as they look."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(to_xyz @ linear(colour) / np.array([0.9505, 1.0, 1.089]))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(a: str, b: str) -> float:
    """As WCAG defines it."""
    dark, light = sorted(float(np.array([0.2126, 0.7152, 0.0722]) @ linear(each)) for each in (a, b))
    return (light + 0.05) / (dark + 0.05)


def test_everything_registered_has_a_colour_and_no_two_have_the_same():
    assert set(METHOD_COLOURS) == set(REGISTERED)
    for theme in (0, 1):
        assert len({colours[theme] for colours in METHOD_COLOURS.values()}) == len(METHOD_COLOURS)


@pytest.mark.parametrize(("theme", "behind"), [(0, WHITE), (1, DARK)], ids=["light", "dark"])
def test_lines_stand_out_from_the_page(theme, behind):
    """2.5 to 1: a line of two pixels with markers, whose name stands beside it."""
    faint = {name: contrast(colours[theme], behind) for name, colours in METHOD_COLOURS.items()}
    assert min(faint.values()) >= 2.5, faint


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_methods_that_meet_in_an_experiment_are_told_apart_by_colour(path):
    names = sorted({method["name"] for method in read_content(path).get("methods", [])})
    for theme, (a, b) in itertools.product((0, 1), itertools.combinations(names, 2)):
        distance = np.linalg.norm(lab(METHOD_COLOURS[a][theme]) - lab(METHOD_COLOURS[b][theme]))
        assert distance >= 18, (a, b, theme, distance)


def test_a_method_has_its_colour_whatever_runs_beside_it_and_in_whatever_order():
    rng = random.Random(0)
    entries = [f"{name}{more}" for name in REGISTERED for more in ("", " (published)", " (4-bit)")]
    for _ in range(200):
        some = rng.sample([*entries, "mine", "ring(10)"], rng.randint(1, 20))
        for entry, style in styled(some).items():
            if (name := entry.split(" (")[0]) in METHOD_COLOURS:
                assert (style.light, style.dark) == METHOD_COLOURS[name]


def test_entries_of_one_method_share_its_colour_and_differ_in_dashes_and_markers():
    entries = ["dapg (4-bit)", "dapg", "dapg (published)", "dapg (over tree)", "prox-ed (safe)"]
    styles = styled(entries)
    assert list(styles) == entries
    own = [styles[entry] for entry in entries[:4]]
    assert len({style.light for style in own}) == 1
    assert len({style.dash for style in own}) == len({style.marker for style in own}) == 4
    assert [style.variant for style in styles.values()] == [True, False, True, True, False]


def test_names_that_are_no_methods_keep_theirs_and_do_not_share():
    alone = styled(["mine"])["mine"]
    assert (alone.light, alone.dark) in PALETTE
    assert styled(["admm", "mine", "apapc"])["mine"] == alone
    graphs = styled([f"ring({n})" for n in range(3, 3 + len(PALETTE))])
    assert len({style.light for style in graphs.values()}) == len(PALETTE)
