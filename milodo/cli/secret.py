"""The command that makes a run's secret."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from milodo.cli.folders import writing_to
from milodo.cli.terminal import console, say
from milodo.errors import InvalidInput


def secret(file: Annotated[Path, typer.Argument(help="The file to write; it must not exist yet.", show_default=False)]) -> None:
    """Make a secret for a run on several machines: only processes that know it can take part.

    Copy the file to every machine by a way that you trust (scp), and give it to `milodo node` or `milodo run` with --secret.
    """
    from milodo.secret import write_secret

    with writing_to(file):
        try:
            write_secret(file)
        except FileExistsError as error:
            raise InvalidInput(f"{file} is there already, and some run may use it. Choose another name, or delete it.") from error
    say(
        console,
        f"A new secret is in {file}. Copy it to every machine, where only you may read it, and give it with --secret.",
    )
