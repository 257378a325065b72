"""Three hospitals, one model, and no patient's record leaves its hospital.

Each hospital has a CSV file of its own. Three processes start, one a hospital; each reads its own file and nothing else, and
talks to its two neighbours. What they say: counts and sums (to standardise), and iterates of the model. At the end all three have
saved the coefficients that a Lasso on all patients together would give, the same to the last bit; the first one prints them.

    python examples/hospitals.py [FOLDER]
"""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

FEATURES = ["age", "blood_pressure", "body_mass", "glucose", "smoker", "exercise", "distance_to_clinic"]
TRUTH = [0.4, 0.2, 1.1, 2.0, 3.0, -1.5, 0.0]
"""What the days in hospital really depend on, per standard deviation."""
PATIENTS = {"north": 80, "coast": 210, "valley": 35}


def admit(hospital: str, patients: int, folder: Path) -> Path:
    """One hospital's file; hospitals differ in size, and their patients differ in age."""
    rng = np.random.default_rng(list(hospital.encode()))
    scale, centre = np.array([15, 12, 4, 20, 0.5, 2, 30]), np.array([50, 130, 27, 100, 0.3, 3, 25])
    X = centre + scale * rng.standard_normal((patients, len(FEATURES)))
    X[:, 0] += {"north": 10, "coast": 0, "valley": -8}[hospital]
    days = 6 + (X - centre) / scale @ TRUTH + rng.standard_normal(patients)
    path = folder / f"{hospital}.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*FEATURES, "days"])
        writer.writerows(np.column_stack([X, days]).round(3).tolist())
    return path


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/hospitals")
    folder.mkdir(parents=True, exist_ok=True)
    files = [admit(hospital, patients, folder) for hospital, patients in PATIENTS.items()]

    # On three machines each would start its own line, with MASTER_ADDR the address of the first (or use torchrun), and with
    # --secret FILE, the same file everywhere (`milodo secret FILE` makes it): only who knows it can take part.
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ.get("MASTER_PORT", "29531"), "WORLD_SIZE": str(len(files))}
    sites = []
    for rank, file in enumerate(files):
        command = [sys.executable, "-m", "milodo", "node", "--data", str(file), "--target", "days", "--loss", "squared"]
        command += ["--l1", "0.1", "--standardise", "--graph", "ring", "--out", str(folder / "fit-{rank}")]
        sites.append(subprocess.Popen(command, env={**os.environ, **meeting, "RANK": str(rank)}))
    if any([site.wait() for site in sites]):
        sys.exit("a hospital did not finish; its message says why")

    fits = [json.loads((folder / f"fit-{rank}" / "fit.json").read_text()) for rank in range(len(files))]
    assert len({fit["sha256"] for fit in fits}) == 1
    fit = fits[0]
    print("\nwhat the days depend on, per standard deviation:")
    for name, found, true in zip(FEATURES, fit["standardised"], TRUTH, strict=True):
        print(f"  {name:20s} {found:+.3f}   (truth {true:+.1f})")
    print(f"certified to {fit['gap']:.0e} above the best possible, {fit['bytes'] / 1000:.0f} kB sent in {fit['rounds']} rounds")


if __name__ == "__main__":
    main()
