"""Tables in files: columns are known by name, all problems are told at once, and nothing is read that would fill the memory."""

from __future__ import annotations

import csv
import json
import random
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mutations import mutated_text
from real import finish, start
from test_sites import DIABETES, hospitals

from milodo.cli import main
from milodo.errors import InvalidInput
from milodo.fit import Task, fit_here, readers
from milodo.fit.cells import PLAIN
from milodo.fit.tables import read_site, read_sites

FRAME = pd.DataFrame(DIABETES.data, columns=DIABETES.feature_names).assign(y=DIABETES.target)
WRITERS = {
    "csv": lambda frame, path: frame.to_csv(path, index=False),
    "parquet": lambda frame, path: frame.to_parquet(path),
    "npz": lambda frame, path: np.savez(
        path, X=frame.drop(columns="y"), y=frame["y"], columns=np.array(frame.columns.drop("y"), dtype=str)
    ),
}


def solve(*words: object) -> int:
    try:
        return main.run(["solve", *map(str, words)])
    except SystemExit as ended:
        return int(ended.code or 0)


NUMBERED = pd.Index(np.arange(len(FRAME)) ** 2)
INDEXES = {
    "without a name": NUMBERED,
    "with a name": NUMBERED.rename("patient"),
    "of two levels": pd.MultiIndex.from_arrays([NUMBERED, NUMBERED % 7], names=["patient", None]),
}


@pytest.mark.parametrize("kind", INDEXES)
def test_the_index_of_a_data_frame_is_no_feature(tmp_path, kind):
    index = INDEXES[kind]
    FRAME.set_axis(index).to_parquet(tmp_path / "a.parquet")
    assert len(pq.read_schema(tmp_path / "a.parquet").names) > len(FRAME.columns)
    site = read_site(tmp_path / "a.parquet", "y")
    assert site.columns == tuple(DIABETES.feature_names) and np.array_equal(site.features, DIABETES.data)


def test_a_target_that_is_the_index_is_still_the_target(tmp_path):
    FRAME.set_index("y").to_parquet(tmp_path / "a.parquet")
    assert np.array_equal(read_site(tmp_path / "a.parquet", "y").target, DIABETES.target)


@pytest.mark.parametrize("kind", WRITERS)
def test_columns_in_another_order_are_matched_by_name(tmp_path, kind):
    """The model is that of the same data in one order, bit by bit."""
    parts = [FRAME.iloc[rows] for rows in np.split(np.arange(len(FRAME)), [100, 250])]
    for k, part in enumerate(parts):
        WRITERS[kind](part, tmp_path / f"same-{k}.{kind}")
        WRITERS[kind](part[[*np.roll(part.columns, 3 * k)]], tmp_path / f"rolled-{k}.{kind}")
    fits = []
    for name in ("same", "rolled"):
        assert solve("--data", tmp_path / f"{name}-*.{kind}", "--l1", "0.1", "--out", tmp_path / name) == 0
        fits.append(json.loads((tmp_path / name / "fit.json").read_text()))
    assert fits[0]["columns"] == fits[1]["columns"] and fits[0]["sha256"] == fits[1]["sha256"]
    task = Task(target="y", l1=0.1)
    sites = [read_site(tmp_path / f"rolled-{k}.{kind}", "y") for k in range(3)]  # each in its own order, matched by the fit
    assert len({site.columns for site in sites}) == 3 and fit_here(sites, task).sha256 == fits[0]["sha256"]


def test_real_sites_match_columns_by_name(tmp_path):
    for path in hospitals(tmp_path):
        frame = pd.read_csv(path, dtype=str)
        frame[[*np.roll(frame.columns, 3 * int(path.stem[-1]))]].to_csv(tmp_path / f"rolled-{path.name}", index=False)
    options = ["--target", "progression", "--l1", "1"]
    assert solve("--data", tmp_path / "site-*.csv", *options, "--out", tmp_path / "here") == 0
    words = ["-m", "milodo", "node", *options, "--data", str(tmp_path / "rolled-site-{rank}.csv"), "--out", str(tmp_path / "fit")]
    ends = finish(start([*words, "--timeout", "200"], 3))
    assert [end.code for end in ends] == [0, 0, 0], ends
    here, there = (json.loads((tmp_path / name / "fit.json").read_text()) for name in ("here", "fit"))
    assert here["columns"] == there["columns"] and here["coefficients"] == pytest.approx(there["coefficients"], rel=1e-9)


def test_a_column_that_one_site_lacks_can_be_ignored(tmp_path, capsys):
    WRITERS["csv"](FRAME.iloc[:200], tmp_path / "a.csv")
    WRITERS["csv"](FRAME.iloc[200:].assign(shoes=1, hat=2).drop(columns=["age", "bmi"]), tmp_path / "b.csv")
    data = ("--data", tmp_path / "?.csv", "--graph", "path", "--out", tmp_path / "out")
    assert solve(*data) == 2
    said = capsys.readouterr().err
    assert "no columns 'age', 'bmi', which " in said and "and columns 'shoes', 'hat', which " in said and "(--ignore)" in said
    assert solve(*data, *(word for name in ("age", "bmi", "shoes", "hat") for word in ("--ignore", name))) == 0
    assert solve(*data, "--ignore", "gloves") == 2
    assert "no file has a column 'gloves' to ignore" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_all_problems_of_a_table_are_told_at_once(tmp_path, capsys, kind):
    bad = FRAME.assign(**{f"text{k}": [f"word {k}"] * len(FRAME) for k in range(8)})
    bad.loc[16, ["age", "y"]] = np.nan
    bad.loc[[3, 40], "bmi"] = np.inf
    WRITERS[kind](bad, tmp_path / f"a.{kind}")
    with pytest.raises(InvalidInput) as refused:
        read_site(tmp_path / f"a.{kind}", "y", loss="squared")
    said = str(refused.value)
    for k in range(8):
        assert f"'text{k}' (row 1: 'word {k}'; 442 rows)" in said
    for words in ("'age' (row 17)", "'bmi' (row 4; 2 rows)", "'y' (row 17)", "ignore these columns", "fill them in"):
        assert words in said
    assert len(said) <= 600 and "\n" not in said and refused.value.remedies == ("ignore",)
    ignored = [f"text{k}" for k in range(8)] + ["age", "bmi"]
    with pytest.raises(InvalidInput, match=r"column 'y', row 17 is missing\. Fill it in"):
        read_site(tmp_path / f"a.{kind}", "y", ignored, loss="squared")


def test_problems_of_header_rows_and_cells_are_one_sentence(tmp_path):
    (tmp_path / "a.csv").write_text('a,a,b,c,y\n1,2\n1,2,"1,5",x,4\n1,2,3,4\n')
    with pytest.raises(InvalidInput) as refused:
        read_site(tmp_path / "a.csv", "z")
    said = str(refused.value)
    for words in (
        "two columns are called 'a'",
        "row 1 has 2 values, but there are 5 columns (and 1 more row",
        "no column 'z' to predict",
    ):
        assert words in said
    (tmp_path / "a.csv").write_text('a,b,c,d,y\n1,2\n1,1_0,"1,5",x,4\n1,2,NA,4,5\n')
    with pytest.raises(InvalidInput, match="'c' \\(row 2: '1,5'\\)") as refused:
        read_site(tmp_path / "a.csv", "y")
    assert "other kinds" in str(refused.value)


def test_problems_of_all_files_are_told_at_once(tmp_path):
    for k, text in enumerate(("a,y\n1,2\n,2\n", "a,y\n1,2\n", "a,y\nred,1\nred,2\n")):
        (tmp_path / f"{k}.csv").write_text(text)
    paths = sorted(tmp_path.iterdir())
    with pytest.raises(InvalidInput) as refused:
        read_sites(paths, "y")
    assert "0.csv: column 'a', row 2 is missing." in str(refused.value)
    assert "2.csv: column 'a', row 1 is 'red', not a number (the first of 2 such rows)" in str(refused.value)


def plain_table(rng: random.Random) -> tuple[str, str]:
    """A table of numbers in all spellings, and its delimiter."""
    spellings = ("{}", " {} ", "+{}", '"{}"', "{}\xa0", "-{}", '"{}" ')
    delimiter, end = rng.choice(",;\t"), rng.choice(("\n", "\r\n", "\r", "\n\n"))
    rows = [
        [rng.choice(spellings).format(rng.choice((abs(rng.gauss(0, 1)), 7, ".5", "2.", "1E-3", "0" * 30 + "1"))) for _ in "abc"]
        for _ in range(rng.randint(1, 40))
    ]
    return end.join(["", "a,b,c".replace(",", delimiter), *map(delimiter.join, rows)]) + rng.choice(("", end)), delimiter


def test_arrow_reads_what_pythons_own_parser_reads(tmp_path, monkeypatch):
    """Numbers in every plain spelling, whole and damaged: the same numbers or the same refusal, to the bit."""
    file, read = tmp_path / "a.csv", 0
    for seed in range(300):
        rng = random.Random(seed)
        text, delimiter = plain_table(rng)
        text = text if seed % 3 else mutated_text(rng, text)
        file.write_bytes(text.encode("utf-8", "surrogatepass"))
        monkeypatch.setattr(readers, "BLOCK", rng.choice((64, 300, 1 << 19)))
        try:
            features = read_site(file, "c").features
        except InvalidInput:
            features = None
        try:
            rows = [row for row in csv.reader(file.open(newline="", encoding="utf-8-sig"), delimiter=delimiter) if row]
            plain = (
                len(rows) > 1
                and len(rows[0]) == 3
                and all(len(row) == 3 and all(map(PLAIN.fullmatch, row[:2])) for row in rows[1:])
            )
            expected = np.array([[float(cell) for cell in row[:2]] for row in rows[1:]]) if plain else None
        except (csv.Error, UnicodeDecodeError):
            expected = None
        if seed % 3:
            assert features is not None and expected is not None, text
        if features is not None and expected is not None:
            read += 1
            assert np.array_equal(features, expected), text
    assert read > 200


def test_a_row_longer_than_a_block_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "BLOCK", 1 << 10)
    wide = pd.DataFrame(np.random.default_rng(0).standard_normal((5, 400)), columns=[f"x{k}" for k in range(400)]).assign(y=1.0)
    wide.to_csv(tmp_path / "a.csv", index=False)
    assert np.array_equal(read_site(tmp_path / "a.csv", "y").features, wide.drop(columns="y"))


def test_rows_are_counted_across_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "BLOCK", 64)
    monkeypatch.setattr(readers, "ROWS", 16)
    rows = [f"{k},{k},{k}" for k in range(1, 201)]
    rows[149], rows[169] = "x,1,1", "x,1,1"
    (tmp_path / "a.csv").write_text("\n".join(["a,b,y", *rows]))
    with pytest.raises(InvalidInput, match=r"column 'a', row 150 is 'x', not a number \(the first of 2 such rows\)"):
        read_site(tmp_path / "a.csv", "y")
    rows[120] = "1,2"  # which takes Python's own parser
    (tmp_path / "a.csv").write_text("\n".join(["a,b,y", *rows]))
    with pytest.raises(InvalidInput, match=r"row 121 has 2 values, .*text in 'a' \(row 150: 'x'; 2 rows\)"):
        read_site(tmp_path / "a.csv", "y")


def test_words_in_later_blocks_are_classes_all_the_same(tmp_path, monkeypatch):
    from milodo.fit.sites import class_counts, indicator

    monkeypatch.setattr(readers, "BLOCK", 64)
    (tmp_path / "a.csv").write_text("a,y\n" + "1,0\n2,1.0\n" * 50 + "3,one\n" * 10)
    with pytest.raises(InvalidInput, match="3 different values"):
        class_counts(read_site(tmp_path / "a.csv", "y"), "y")
    (tmp_path / "a.csv").write_text("a,y\n" + "1,1.0\n" * 50 + "3, one\n" * 10)
    site = read_site(tmp_path / "a.csv", "y")
    assert class_counts(site, "y") == {"1": 50, "one": 10} and indicator(site, ("1", "one")).sum() == 10


ODD_COLUMNS = {
    "words of numbers": (pa.array(["1", " 2.5", "+3"]), [1, 2.5, 3]),
    "categories": (pa.array(["1", "2", "1"]).dictionary_encode(), [1, 2, 1]),
    "decimals": (pa.array([1, 2, 3], pa.decimal128(5, 2)), [1, 2, 3]),
    "large": (pa.array([2**60 + 1, -(2**60), 0]), [2.0**60, -(2.0**60), 0]),
    "half": (pa.array(np.array([1, 2, 3], np.float16)), [1, 2, 3]),
    "dates": (pa.array([1, 2, 3], pa.date32()), "'1970-01-02', not a number"),
    "lists": (pa.array([[1], [2], [3]]), r"'\[1\]', not a number"),
    "nothing": (pa.nulls(3), "is missing"),
}


@pytest.mark.parametrize("name", ODD_COLUMNS)
def test_columns_of_a_parquet_file_are_numbers_or_told(tmp_path, name):
    column, expected = ODD_COLUMNS[name]
    pq.write_table(pa.table({"a": column, "y": [1.0, 2.0, 3.0]}), tmp_path / "a.parquet")
    if isinstance(expected, str):
        with pytest.raises(InvalidInput, match=f"column 'a', row 1 {'' if expected.startswith('is') else 'is '}{expected}"):
            read_site(tmp_path / "a.parquet", "y")
    else:
        assert read_site(tmp_path / "a.parquet", "y").features[:, 0].tolist() == expected


def test_a_parquet_file_of_several_row_groups_is_read_whole(tmp_path):
    pq.write_table(pa.Table.from_pandas(FRAME), tmp_path / "a.parquet", row_group_size=50)
    site = read_site(tmp_path / "a.parquet", "y")
    assert np.array_equal(site.features, DIABETES.data) and np.array_equal(site.target, DIABETES.target)
    twice = pa.Table.from_arrays([pa.array([1.0])] * 3, names=["a", "a", "y"])
    pq.write_table(twice, tmp_path / "a.parquet")
    with pytest.raises(InvalidInput, match="two columns are called 'a'"):
        read_site(tmp_path / "a.parquet", "y")


def test_an_archive_that_would_fill_the_memory_is_not_opened(tmp_path, monkeypatch):
    """4 MB that say they unpack to 4 GiB, by the list of contents alone."""
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, archive.open("X.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (1 << 22, 8)})
        for _ in range(1 << 8):
            file.write(bytes(1 << 20))
    assert path.stat().st_size < 4 << 20
    monkeypatch.setattr(np, "load", lambda *args, **kwargs: pytest.fail("it was opened"))
    monkeypatch.setattr("milodo.memory.free_memory", lambda: 1 << 40)
    with pytest.raises(InvalidInput, match="times as much, are not opened: it may be made to fill the memory"):
        read_site(path, "y")
