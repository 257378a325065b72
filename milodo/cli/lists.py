"""Commands that show what there is: methods, optimizers, topology."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from milodo.cli.folders import writing_to
from milodo.cli.terminal import console, say
from milodo.errors import InvalidInput
from milodo.files import is_folder

PICTURES = (".png", ".svg", ".pdf")


def methods() -> None:
    """List the methods, handcrafted and learned, with a sentence about each."""
    from milodo.algorithms import METHODS
    from milodo.extensions import load_installed
    from milodo.learned import LEARNED

    load_installed()
    table = Table("name", "method")
    table.add_row(
        "auto", "Not a method but the choice of one, by what you pay for: pay = 'bytes', 'rounds' or 'seconds'. Nothing to tune."
    )
    for name, method in (METHODS | LEARNED).items():
        about = sys.modules[method.__module__] if method.__module__.startswith("milodo.") else method
        table.add_row(name, escape((about.__doc__ or "").partition("\n")[0]))
    console.print(table)
    say(console, 'Race one: in [[methods]] of an experiment write name = "NAME"; `milodo optimizers` lists trained weights.')


def optimizers(
    name: Annotated[str | None, typer.Argument(help="One of them, or a path: show its whole card.", show_default=False)] = None,
) -> None:
    """List the trained optimizers that come with milodo, and what each is good for; with a name, show its card."""
    from milodo.cli.tables import optimizers_table
    from milodo.learned.checkpoint import find_optimizer, read_card, shipped

    if name is not None:
        console.print_json(read_card(find_optimizer(name)).model_dump_json(), ensure_ascii=True)  # no control characters
        return
    console.print(optimizers_table([read_card(path) for path in shipped().values()]))
    say(console, 'Race one: in [[methods]] of an experiment write name = "milodo" and weights = "NAME".')


def topology(
    name: Annotated[
        str,
        typer.Argument(
            help="A name (ring(10), path(6), star(8), complete(5), tree(10), grid(3x3), torus(4x4), exponential(10), "
            "hypercube(3), regular(20,4,seed=1), erdos_renyi(10,0.4,seed=1)), an edge list or a .graphml file.",
            show_default=False,
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Where to draw it, .png, .svg or .pdf; NAME.png unless given.")] = None,
) -> None:
    """Facts of a graph (size, diameter, how fast each choice of weights mixes), and its picture."""
    from milodo.cli.tables import topology_table
    from milodo.topology import topology as named

    graph = named(name)
    path = Path("".join(c if c.isalnum() else "-" for c in Path(graph.name).stem).strip("-") + ".png")
    if out is not None:
        path = out / path if is_folder(out) else out
    if path.suffix not in PICTURES:
        raise InvalidInput(f"cannot draw to {str(path)!r}. Give a name that ends in {', '.join(PICTURES)}.")
    from milodo.report.figures import draw_topology  # matplotlib takes half a second: not for a misspelt name

    with console.status("mixing and drawing"), writing_to(path):
        table = topology_table(graph)
        written = draw_topology(graph, path)
    console.print(table)
    say(console, f"Drawn to {' and '.join(map(str, written))}.")
