"""Who takes part in a fit is listed before it begins; nobody counts twice; and every site ends with the same model."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from real import finish, start
from test_sites import clinics, hospitals
from torch.distributed import HashStore

from milodo.cli import main
from milodo.errors import InvalidInput, Stopped
from milodo.fit import Fit, Site, Task, fit_here
from milodo.fit.saved import read_fit
from milodo.fit.sites import facts_of
from milodo.runtime.group import Group
from milodo.runtime.sites import Place, refuse_copies, refuse_other_models

TASK = Task(target="y", l1=0.1, graph="path")


def table(name: str, seed: int, rows: int = 8) -> Site:
    rng = np.random.default_rng(seed)
    return Site(name, ("a", "b"), rng.standard_normal((rows, 2)), rng.standard_normal(rows))


def fitted() -> Fit:
    return fit_here([table("a.csv", 0), table("b.csv", 1)], TASK)


def solve(tmp_path: Path, *words: object) -> int:
    try:
        return main.run(["solve", *map(str, words), "--out", str(tmp_path / "out")])
    except SystemExit as ended:
        return int(ended.code or 0)


def test_every_site_is_listed_before_the_fit_and_in_its_file(tmp_path, capsys, monkeypatch):
    clinics(tmp_path)  # 569 rows, of which two sites know one class only
    monkeypatch.setattr("milodo.cli.terminal.console.width", 200)
    words = ("--data", tmp_path / "clinic-*.csv", "--target", "diagnosis", "--loss", "logistic", "--l1", "0.03", "--standardise")
    assert solve(tmp_path, *words) == 0
    sites = json.loads((tmp_path / "out" / "fit.json").read_text())["sites"]
    some = {"benign": 88, "malignant": 112}
    expected = [(100, {"malignant": 100}), (200, some), (150, {"benign": 150}), (119, {"benign": 119})]
    assert [(site["rows"], site["classes"]) for site in sites] == expected
    assert [(Path(site["name"]).stem, site["columns"]) for site in sites] == [(f"clinic-{k}", 30) for k in range(4)]
    assert [site.rows for site in read_fit(tmp_path / "out").fit.sites] == [rows for rows, _ in expected]
    shown = capsys.readouterr().out
    before = shown[: shown.index("It will cost")]
    assert "4 sites, 569 rows" in before and "of class 'benign'" in before
    for site, (rows, classes) in zip(sites, expected, strict=True):
        line = next(line for line in before.splitlines() if Path(site["name"]).stem in line or site["name"][-12:] in line)
        cells = [cell.strip() for cell in line.split("│")[2:-1]]
        assert cells == [str(rows), *(str(classes.get(name, 0)) for name in ("benign", "malignant")), "30"]


def test_the_same_rows_are_not_counted_twice(tmp_path, capsys):
    first, *_ = hospitals(tmp_path)
    data = ["--data", tmp_path / "site-*.csv", "--target", "progression", "--graph", "path"]
    shutil.copy(first, tmp_path / "site-copy.csv")
    assert solve(tmp_path, *data) == 2
    said = capsys.readouterr().err
    assert "site-copy.csv holds the very same rows as" in said and "site-0.csv" in said and said.count("\n") == 1
    assert solve(tmp_path, "--data", first, "--data", first, *data[2:]) == 2
    assert "would count twice" in capsys.readouterr().err
    rows = first.read_text().splitlines()
    (tmp_path / "site-copy.csv").write_text("\n".join([*rows[:-1], rows[1]]) + "\n")  # as many rows, but not the same
    assert solve(tmp_path, *data) == 0


def test_real_sites_with_the_same_rows_are_refused_by_name(tmp_path):
    hospitals(tmp_path)
    shutil.copy(tmp_path / "site-0.csv", tmp_path / "site-2.csv")
    words = ["-m", "milodo", "node", "--target", "progression", "--data", str(tmp_path / "site-{rank}.csv")]
    ends = finish(start([*words, "--out", str(tmp_path / "fit"), "--timeout", "200"], 3))
    said = "".join(end.err for end in ends)
    assert all(end.code in (2, 3) for end in ends) and said.count("milodo:") == 1, said
    assert "node 2's site-2.csv holds the very same rows as node 0's site-0.csv" in said and not (tmp_path / "fit").exists()


def among(threads, store: HashStore) -> list[BaseException | None]:
    """What each of several processes of a group ends with; here they are threads that share the store."""
    ends: list[BaseException | None] = [None] * len(threads)

    def run(rank: int) -> None:
        try:
            threads[rank](Group(rank, len(threads), store, 60.0))
        except (InvalidInput, Stopped) as error:
            ends[rank] = error

    running = [threading.Thread(target=run, args=(rank,)) for rank in range(len(threads))]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return ends


def compared(sites: list[Site], salt: str) -> tuple[list[BaseException | None], dict[int, str]]:
    """How each of the sites ends, and the digests that they published."""
    facts, store = [facts_of(site, TASK) for site in sites], HashStore()
    ends = among([lambda group, site=site: refuse_copies(site, facts, group, salt) for site in sites], store)
    keys = {rank: f"content/{rank}" for rank in range(len(sites))}
    return ends, {rank: store.get(key).decode() for rank, key in keys.items() if store.check([key])}


def test_a_site_publishes_a_digest_only_if_another_has_as_many_rows_and_another_one_in_every_run():
    sites = [table("a.csv", 0), table("b.csv", 1), table("c.csv", 2, rows=9)]
    ends, told = compared(sites, "salt")
    assert ends == [None] * 3 and set(told) == {0, 1} and told[0] != told[1]
    assert not set(compared(sites, "other salt")[1].values()) & set(told.values())
    ends, _ = compared([*sites, replace(sites[1], name="d.csv")], "salt")
    assert [type(end) for end in ends] == [type(None), InvalidInput, type(None), InvalidInput]
    assert str(ends[1]) == str(ends[3]) and str(ends[1]).startswith("d.csv holds the very same rows as b.csv")


def test_sites_that_end_with_different_models_save_neither():
    fit = fitted()
    assert among([lambda group: refuse_other_models(fit, group)] * 3, HashStore()) == [None] * 3
    others = (
        replace(fit, coefficients=[np.nextafter(fit.coefficients[0], 1), *fit.coefficients[1:]]),
        replace(fit, intercept=np.nextafter(fit.intercept, 1)),
        replace(fit, columns=fit.columns[::-1]),
    )
    for other in others:
        ends = among([lambda group, found=found: refuse_other_models(found, group) for found in (fit, fit, other)], HashStore())
        assert all(isinstance(end, Stopped) and "node 2 ended with another model than node 0" in str(end) for end in ends), ends


def test_every_node_has_a_folder_of_its_own():
    for out in ("runs/fit", "runs/{rank}/fit", "runs/site-{rank}"):
        assert len({Place(Path(out)).folder(rank) for rank in range(12)}) == 12
    assert Place(Path("runs/fit")).folder(0) == Path("runs/fit") and Place(Path("runs/fit")).folder(2) == Path("runs/fit/node-2")
    assert Place(Path("runs/{rank}/fit")).folder(0) == Path("runs/0/fit")


def test_a_model_that_was_altered_is_refused(tmp_path):
    hospitals(tmp_path)
    assert solve(tmp_path, "--data", tmp_path / "site-*.csv", "--target", "progression") == 0
    whole = json.loads((tmp_path / "out" / "fit.json").read_text())
    for changed in ({"intercept": 1.0}, {"coefficients": whole["coefficients"][::-1]}, {"columns": whole["columns"][::-1]}):
        (tmp_path / "fit.json").write_text(json.dumps({**whole, **changed}))
        with pytest.raises(InvalidInput, match="not those that were saved"):
            read_fit(tmp_path)
