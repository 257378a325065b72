"""The pictures of docs/gallery.md: runs every example and draws what it found.

python docs/gallery/draw.py [NAME ...]        # cifar_on_a_graph needs CIFAR-10: docs/data.md
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.ticker import FuncFormatter

import milodo
from milodo.problems.datasets import cifar10
from milodo.problems.splits import split
from milodo.report.figures import INK, RC, new_figure, save_figure
from milodo.report.styles import METHOD_COLOURS, PALETTE
from milodo.report.words import power

HERE = Path(__file__).parent
EXAMPLES = HERE.parent.parent / "examples"
CIFAR_LABELS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BLUE, ORANGE, GREEN = (light for light, _ in PALETTE[:3])


def run(name: str, *arguments: str) -> dict[str, Any]:
    """What an example leaves behind: its global names."""
    sys.argv = [f"{name}.py", *arguments]
    return runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


def panel(title: str) -> tuple[Any, Any]:
    figure = new_figure(6.4, 4.0)
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", pad=10)
    return figure, axes


def hospitals() -> Any:
    folder = Path("runs/hospitals")
    names = run("hospitals", str(folder))
    found = json.loads((folder / "fit" / "fit.json").read_text())["standardised"]
    figure, axes = panel("What the days in hospital depend on")
    at = np.arange(len(found))
    axes.barh(at + 0.19, names["TRUTH"], 0.36, color=BLUE, label="truth")
    axes.barh(at - 0.19, found, 0.36, color=ORANGE, label="found by three hospitals together")
    axes.set_yticks(at, [name.replace("_", " ") for name in names["FEATURES"]])
    axes.invert_yaxis()
    axes.set_xlabel("coefficient per standard deviation")
    axes.legend(loc="lower right")
    return figure


def own_method() -> Any:
    names = run("own_method")
    problem, net = names["unseen"], names["net"]
    best = milodo.optimum(problem).value
    figure, axes = panel("A method of one's own, tuned like Prox-ED")
    searches = {names["GradientTracking"]: METHOD_COLOURS["gradient-tracking"][0], milodo.ProxED: METHOD_COLOURS["prox-ed"][0]}
    for method, colour in searches.items():
        found = names["tune"](method, names["training"], net, milodo.optimum(names["training"]).value, names["search"])
        gaps = []
        for k, state in enumerate(milodo.iterate(method(**found.best), problem, net)):
            mean = state.x.mean(-2, keepdim=True).expand_as(state.x)
            gaps.append((problem.value(mean).mean(-1) + problem.reg.value(mean[..., 0, :]) - best).clamp_min(1e-16))
            if k == 120:
                break
        quartiles = torch.stack(gaps).quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64), dim=-1)
        axes.semilogy(quartiles[1], color=colour, label=method.label)
        axes.fill_between(range(len(gaps)), quartiles[0], quartiles[2], color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel("iterations")
    axes.set_ylabel("gap, 32 unseen problems")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: power(value)))
    axes.legend()
    return figure


def own_network() -> Any:
    names = run("own_network")
    module, points, result = (names[key] for key in ("module", "points", "result"))
    figure, axes = panel("Eight sites, each with one arc, learn both moons")
    across, up = torch.meshgrid(torch.linspace(-1.6, 2.6, 300), torch.linspace(-1.1, 1.6, 200), indexing="xy")
    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(result.x.mean(0), module.parameters())
        score = module(torch.stack((across, up), -1).flatten(0, 1)).softmax(-1)[:, 1].reshape(across.shape)
    axes.contourf(across, up, score, levels=np.linspace(0, 1, 11), cmap="RdBu_r", alpha=0.45)
    site = torch.arange(len(points)) // (len(points) // names["n"])
    for i in range(names["n"]):
        mine = points[site == i]
        axes.scatter(*mine.T, s=9, color=PALETTE[i % len(PALETTE)][0], label=f"site {i}")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), borderaxespad=0, markerscale=2)
    return figure


def own_objective() -> Any:
    names = run("own_objective")
    figure, axes = panel("Sparse robust regression with a broken sensor at every site")
    at = np.arange(names["d"])
    axes.bar(at - 0.27, names["truth"], 0.26, color=BLUE, label="truth")
    axes.bar(at, names["x"], 0.26, color=ORANGE, label="Huber and L1, eight sites")
    axes.bar(at + 0.27, names["least_squares"], 0.26, color=GREEN, label="least squares")
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_xlabel("coefficient")
    axes.legend()
    return figure


def cifar_on_a_graph() -> Any:
    """What its four nodes hold; the run itself takes longer than a picture should."""
    _, labels = cifar10("train")
    figure, axes = panel("Four nodes, and what each has of CIFAR-10")
    rows = split("dirichlet(0.1)", labels, 4, seed=0)
    left = np.zeros(len(rows))
    for label, name in enumerate(CIFAR_LABELS):
        counts = np.array([(labels[own] == label).sum() for own in rows])
        shade = matplotlib.colormaps["tab10"](label)
        axes.barh([f"node {i}" for i in range(len(rows))], counts, left=left, color=shade, label=name, edgecolor="white")
        left += counts
    axes.invert_yaxis()
    axes.set_xlabel("training images, by label")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), borderaxespad=0)
    return figure


DRAW = {draw.__name__: draw for draw in (hospitals, own_method, own_network, own_objective, cifar_on_a_graph)}


def main() -> None:
    for name in sys.argv[1:] or list(DRAW):
        with matplotlib.rc_context(RC):
            print(*save_figure(DRAW[name](), HERE / f"{name}.png"))


if __name__ == "__main__":
    main()
