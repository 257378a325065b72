"""Several runs of one experiment in one folder, so that one report shows them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from milodo.bench.records import Record, read_json, read_records, write_records
from milodo.errors import InvalidInput, quoted
from milodo.files import make_writable, write_json

MUST_AGREE = ("problem", "instances", "gaps")


def merge_runs(folders: Sequence[Path], out: Path) -> Path:
    """Methods of later runs are told apart by their runtime: 'prox-ed' and 'prox-ed (distributed)'."""
    runs = [read_json(folder / "run.json") for folder in folders]
    if out.resolve() in [folder.resolve() for folder in folders]:
        raise InvalidInput(f"{str(out)!r} is one of the runs to merge. Write to another folder.", "out")
    first = runs[0]
    if (out / "run.json").exists() and "merged" not in read_json(out / "run.json"):
        said = f"{str(out)!r} already holds a run, which a report of several would replace. Choose another folder."
        raise InvalidInput(said, "out")
    for folder, run in zip(folders[1:], runs[1:], strict=True):
        for key in MUST_AGREE:
            if run.get(key) != first.get(key):
                raise InvalidInput(
                    f"{str(folder)!r} and {str(folders[0])!r} differ in their {key} ({quoted(run.get(key))} and "
                    f"{quoted(first.get(key))}), so they do not belong into one report."
                )
        for key in ("fingerprint", "weights", "outage", "messages"):
            if run["topology"].get(key) != first["topology"].get(key):
                raise InvalidInput(
                    f"{str(folder)!r} and {str(folders[0])!r} were run on different networks (their {key} differ)."
                )
        if run["provenance"].get("seed") != first["provenance"].get("seed"):
            raise InvalidInput(f"{str(folder)!r} and {str(folders[0])!r} were run with different seeds, on other instances.")
    make_writable(out)
    merged, records = dict(first), list[Record]()
    merged["methods"], merged["tuning"] = {}, {}
    for folder, run in zip(folders, runs, strict=True):
        names = {key: _told_apart(key, str(run.get("runtime")), merged["methods"]) for key in run["methods"]}
        for key, facts in run["methods"].items():
            merged["methods"][names[key]] = _labelled(facts, key, names[key])
            if key in run["tuning"]:
                merged["tuning"][names[key]] = run["tuning"][key]
        records += [replace(row, method=names.get(row.method, row.method)) for row in read_records(folder / "records.csv")]
    merged["merged"] = [folder.name for folder in folders]
    merged["runtime"] = " and ".join(dict.fromkeys(str(run.get("runtime")) for run in runs))
    write_json(out / "run.json", merged)
    write_records(out / "records.csv", records)
    return out


def _told_apart(key: str, runtime: str, taken: dict[str, Any]) -> str:
    word = runtime
    for number in range(2, 100):
        if key not in taken:
            return key
        name = f"{key[:-1]}, {word})" if key.endswith(")") else f"{key} ({word})"
        if name not in taken:
            return name
        word = f"{runtime} {number}"
    raise InvalidInput(f"too many runs with a method {quoted(key)}. Merge fewer of them.")


def _labelled(facts: dict[str, Any], key: str, name: str) -> dict[str, Any]:
    if key == name:
        return facts
    extra = name[len(key.removesuffix(")")) :].strip(" (,)")
    label = facts.get("label", key)
    return {**facts, "label": f"{label[:-1]}, {extra})" if label.endswith(")") else f"{label} ({extra})"}
