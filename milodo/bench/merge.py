"""Several runs of one experiment in one folder, so that one report shows them all."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from milodo.bench.records import Record, read_records, write_records
from milodo.bench.run_file import NAME, MethodFacts, RunFile
from milodo.errors import InvalidInput, quoted
from milodo.files import make_writable


def merge_runs(folders: Sequence[Path], out: Path) -> Path:
    """Methods of later runs are told apart by their runtime: 'prox-ed' and 'prox-ed (distributed)'."""
    runs = [RunFile.read(folder) for folder in folders]
    if out.resolve() in [folder.resolve() for folder in folders]:
        raise InvalidInput(f"{str(out)!r} is one of the runs to merge. Write to another folder.", "out")
    if (out / NAME).exists() and RunFile.read(out).merged is None:
        said = f"{str(out)!r} already holds a run, which a report of several would replace. Choose another folder."
        raise InvalidInput(said, "out")
    for folder, run in zip(folders[1:], runs[1:], strict=True):
        _check_alike(folder, run, folders[0], runs[0])
    make_writable(out)
    merged, records = runs[0].model_copy(update={"methods": {}, "tuning": {}}), list[Record]()
    for folder, run in zip(folders, runs, strict=True):
        names = {key: _told_apart(key, run.runtime, merged.methods) for key in run.methods}
        merged.methods |= {names[key]: _labelled(facts, key, names[key]) for key, facts in run.methods.items()}
        merged.tuning |= {names[key]: tuning for key, tuning in run.tuning.items() if key in names}
        records += [replace(row, method=names.get(row.method, row.method)) for row in read_records(folder / "records.csv")]
    merged.merged = [folder.name for folder in folders]
    merged.runtime = " and ".join(dict.fromkeys(run.runtime for run in runs))
    merged.write(out)
    write_records(out / "records.csv", records)
    return out


def _check_alike(folder: Path, run: RunFile, other: Path, first: RunFile) -> None:
    both = f"{str(folder)!r} and {str(other)!r}"
    for key in ("problem", "instances", "gaps"):
        here, there = getattr(run, key), getattr(first, key)
        if here != there:
            raise InvalidInput(
                f"{both} differ in their {key} ({quoted(here)} and {quoted(there)}), so they do not belong into one report."
            )
    for key in ("fingerprint", "weights", "outage", "schedule", "messages"):
        if getattr(run.topology, key) != getattr(first.topology, key):
            raise InvalidInput(f"{both} were run on different networks (their {key} differ).")
    if run.provenance.seed != first.provenance.seed:
        raise InvalidInput(f"{both} were run with different seeds, on other instances.")


def _told_apart(key: str, runtime: str, taken: Collection[str]) -> str:
    remarks = (runtime, *(f"{runtime} {number}" for number in range(2, 100)))
    for name in (key, *(_remarked(key, remark) for remark in remarks)):
        if name not in taken:
            return name
    raise InvalidInput(f"too many runs with a method {quoted(key)}. Merge fewer of them.")


def _remarked(name: str, remark: str) -> str:
    return f"{name[:-1]}, {remark})" if name.endswith(")") else f"{name} ({remark})"


def _labelled(facts: MethodFacts, key: str, name: str) -> MethodFacts:
    extra = name[len(key.removesuffix(")")) :].strip(" (,)")
    return facts.model_copy(update={"label": _remarked(facts.label or key, extra)}) if name != key else facts
