"""Puts a trained optimizer among the shipped ones, and what a race measured of it onto its card.

    milodo train milodo-lasso-ring10
    python tools/ship.py runs/milodo-lasso-ring10      copies the weights and the card into milodo/pretrained/
    milodo reproduce fig-lasso-300
    python tools/ship.py runs/milodo-lasso-ring10 runs/fig-lasso-300      adds what that race measured

Results are read from the race's records; a race that was run with other weights is refused.
"""

from __future__ import annotations

import json
import math
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from milodo.bench.records import read_records
from milodo.bench.run_file import RunFile
from milodo.bench.speedup import measured_from_end, speedup_table
from milodo.files import read_versioned_json, write_json
from milodo.learned.checkpoint import BESIDE, PRETRAINED, load_optimizer, read_card

IN_THE_WHEEL = 1 << 20
"""Bytes of weights that an installation carries along."""


def results(folder: Path, sha256: str) -> dict[str, Any]:
    """Median iterations and quartiles to each gap, and how many times fewer than each other method needs."""
    run, records = RunFile.read(folder), read_records(folder / "records.csv")
    own = (name for name, facts in run.methods.items() if facts.weights and facts.weights.sha256 == sha256)
    made_with = run.provenance.model_dump()
    if (learned := next(own, None)) is None:
        sys.exit(f"{folder}: this race was run with other weights. Ship the weights, and race again.")
    said: dict[str, Any] = {
        "command": _without_folder(made_with["command"]),
        "commit": made_with["commit"],
        "problem": run.problem,
        "unseen_instances": run.instances,
        "iterations_median_and_quartiles": {},
        "times_fewer_iterations_than": {},
    }
    gaps = run.gaps
    if not any(math.isfinite(record.gap) for record in records):  # no optimum is known: to where the baseline ended
        records, gaps, said["gaps_are_to"] = (
            measured_from_end(records, run.baseline),
            [0.0],
            f"the loss at which {run.baseline} ended",
        )
    rows = [row for row in speedup_table(records, gaps, None) if row.axis == "k" and row.method == learned]
    said["iterations_median_and_quartiles"] = {f"{r.gap:g}": [_whole(r.median), _whole(r.q25), _whole(r.q75)] for r in rows}
    for other in (name for name in run.methods if name != learned):
        rows = [row for row in speedup_table(records, gaps, other) if row.axis == "k" and row.method == learned]
        ratios = {f"{row.gap:g}": row.ratio if math.isfinite(row.ratio) else row.ratio_least for row in rows}
        said["times_fewer_iterations_than"][other] = {
            gap: round(ratio, 3) for gap, ratio in ratios.items() if math.isfinite(ratio) and ratio > 0
        }
    return said


def _without_folder(command: str) -> str:
    """A command that anybody can repeat: where its run and its experiment lay is nobody's business."""
    words = shlex.split(command)
    places = {"--out", "--data-dir"}
    kept = [word for k, word in enumerate(words) if not places & set(words[max(k - 1, 0) : k + 1]) and word != "--overwrite"]
    return shlex.join(Path(word).stem if word.endswith(".toml") else word for word in kept)


def _whole(cost: float) -> int | None:
    return round(cost) if math.isfinite(cost) else None


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    trained = next(path for path in folder.glob("*.safetensors") if path.stem != "resume")
    _, card = load_optimizer(trained)
    shipped = home_of(trained)
    content = card.model_dump(mode="json")
    content["made_with"]["commit"] = read_versioned_json(folder / "training.json", 1)["commit"]  # of the code that began it
    if len(sys.argv) == 3:
        content["results"] = results(Path(sys.argv[2]), card.weights.sha256)
    shipped.parent.mkdir(exist_ok=True)
    shutil.copyfile(trained, shipped)
    write_json(shipped.with_suffix(".json"), content)
    load_optimizer(shipped)
    print(f"{shipped}: {json.dumps(read_card(shipped).results, indent=2)}")


def home_of(trained: Path) -> Path:
    """In the package, unless the weights are large: those come with the sources only."""
    return (PRETRAINED if trained.stat().st_size <= IN_THE_WHEEL else BESIDE) / trained.name


if __name__ == "__main__":
    main()
