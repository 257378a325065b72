"""The command for a fit that is there: predictions for new rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from milodo.cli.folders import writing_to
from milodo.cli.sites import Ignore
from milodo.cli.terminal import complaints, console, say
from milodo.status import Status


def predict(
    fit: Annotated[Path, typer.Argument(help="The folder that `milodo solve` or `milodo node` wrote to, or its fit.json.")],
    data: Annotated[Path, typer.Option(help="New rows: a CSV, Parquet or NPZ file.", show_default=False)],
    ignore: Ignore = None,
    out: Annotated[
        Path | None, typer.Option(help="The file to write; predictions.csv beside the fit unless given.", show_default=False)
    ] = None,
) -> None:
    """Predict new rows with a model that was fitted: numbers, or classes with their probabilities.

    Columns are found by their names. If the column that was fitted is there too, it says how good the predictions are.
    """
    from milodo.files import is_folder, make_writable, write_csv
    from milodo.fit.saved import read_fit
    from milodo.fit.tables import read_rows

    saved = read_fit(fit)
    status = Status[saved.status]
    if status is not Status.CONVERGED:
        say(complaints, f"milodo: the fit did not converge ({status.sentence}), so its predictions are not those of the model.")
    table = read_rows(data, saved.task.target, ignore or [], saved.columns)
    X = saved.features(table)
    predicted = saved.predict(X)
    quality = saved.quality(str(data), X, table.target) if table.target is not None else None
    header, rows = ["prediction"], [[value] for value in predicted.tolist()]
    if saved.classes is not None:
        header = [*header, *(f"P({name})" for name in saved.classes)]
        rows = [[*row, *both] for row, both in zip(rows, saved.probabilities(X).tolist(), strict=True)]
    file = out or (fit if is_folder(fit) else fit.parent) / "predictions.csv"
    make_writable(file.parent)
    with writing_to(file):
        write_csv(file, header, rows)
    if quality is not None:
        name = "R²" if saved.classes is None else "Fraction of classes that are right"
        say(console, f"{name}: {quality:.4f}.")
    say(console, f"{len(rows):,} predictions of {saved.task.target!r} saved in {file}.")
