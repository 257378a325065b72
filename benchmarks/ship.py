"""Puts a trained optimizer among the shipped ones, and what a race measured of it onto its card.

    milodo train milodo-lasso-ring10
    python benchmarks/ship.py runs/milodo-lasso-ring10      copies the weights and the card into milodo/pretrained/
    milodo bench milodo-lasso-ring10
    python benchmarks/ship.py runs/milodo-lasso-ring10      adds the results, and copies the records into docs/records/

Results are read from the run's records; a race that was run with other weights is refused.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from milodo.bench.records import read_json, read_records
from milodo.bench.speedup import speedup_table
from milodo.files import write_json
from milodo.learned.checkpoint import PRETRAINED, load_optimizer, read_card

RECORDS = Path(__file__).resolve().parent.parent / "docs" / "records"


def results(folder: Path, sha256: str) -> dict[str, Any]:
    """Median iterations and quartiles to each gap, and how many times fewer than each other method needs."""
    run, records = read_json(folder / "run.json"), read_records(folder / "records.csv")
    learned = next(name for name, facts in run["methods"].items() if facts["how"] == "learned")
    if run["methods"][learned]["weights"]["sha256"] != sha256:
        sys.exit(f"{folder}: this race was run with other weights. Run it again with --overwrite.")
    said: dict[str, Any] = {
        "command": run["provenance"]["command"],
        "commit": run["provenance"]["commit"],
        "problem": run["problem"],
        "unseen_instances": run["instances"],
        "iterations_median_and_quartiles": {},
        "times_fewer_iterations_than": {},
    }
    for other in [learned, *(name for name in run["methods"] if name != learned)]:
        rows = [row for row in speedup_table(records, run["gaps"], other) if row.axis == "k" and row.method == learned]
        if other == learned:
            said["iterations_median_and_quartiles"] = {f"{r.gap:g}": [round(r.median), round(r.q25), round(r.q75)] for r in rows}
        else:
            said["times_fewer_iterations_than"][other] = {f"{row.gap:g}": round(row.ratio, 3) for row in rows}
    return said


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    trained = next(path for path in folder.glob("*.safetensors") if path.stem != "resume")
    _, card = load_optimizer(trained)
    shipped = PRETRAINED / trained.name
    shutil.copyfile(trained, shipped)
    content = card.model_dump(mode="json")
    if (folder / "records.csv").exists():
        content["results"] = results(folder, card.weights.sha256)
        there = RECORDS / trained.stem
        there.mkdir(parents=True, exist_ok=True)
        for name in ("run.json", "records.csv", "training.csv"):
            shutil.copyfile(folder / name, there / name)
    write_json(shipped.with_suffix(".json"), content)
    load_optimizer(shipped)
    print(f"{shipped.relative_to(Path.cwd())}: {json.dumps(read_card(shipped).results, indent=2)}")


if __name__ == "__main__":
    main()
