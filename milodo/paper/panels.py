"""[reproduction] of an experiment: a figure or table of the paper, its panels, its two sizes, and what the paper claims."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from milodo.config.experiment import Content
from milodo.config.tables import MethodTable, NonNegativeNumber, Table
from milodo.errors import InvalidInput, quoted, shortened

Size = Literal["laptop", "paper"]


class ChangeTable(Table):
    """What a panel, or the paper's size, has otherwise than the rest of the file: tables with the keys that differ."""

    problem: Content = Field(default_factory=dict)
    network: Content = Field(default_factory=dict)
    run: Content = Field(default_factory=dict)
    """Other iterations are for all methods, also for those that had fewer."""
    tuning: Content = Field(default_factory=dict)
    report: Content = Field(default_factory=dict)
    expect: Content = Field(default_factory=dict)
    methods: list[Content] = Field(default_factory=list)
    """A method that the file has already is changed, another one is added."""
    without: list[str] = Field(default_factory=list)
    """Methods that do not race here, as records call them: 'prox-ed (published)'."""


class PanelTable(ChangeTable):
    """[[reproduction.panels]]: one picture of a figure, and one run."""

    name: Annotated[str, Field(pattern=r"^[\w][\w.+-]*$")]
    title: str = ""
    paper: ChangeTable = ChangeTable()
    """At the paper's size, this panel."""


class ReproductionTable(Table):
    """[reproduction]: what is reproduced, and what it takes."""

    claim: str
    """The paper's, in one sentence."""
    figure: str
    """The paper's label."""
    needs: list[Literal["mnist", "cifar10", "bsds500", "adult"]] = Field(default_factory=list)
    """Data sets."""
    minutes: Annotated[list[NonNegativeNumber], Field(min_length=2, max_length=2)]
    """About, on two cores: at laptop size, at the paper's."""
    expect: Content = Field(default_factory=dict)
    panels: list[PanelTable] = Field(default_factory=list)
    """One without a name unless given."""
    overlay: bool = False
    """Whether the figure shows the panels in one picture instead of side by side."""
    paper: ChangeTable = ChangeTable()
    """At the paper's size, every panel."""

    @model_validator(mode="after")
    def _told_apart(self) -> ReproductionTable:
        names = [panel.name for panel in self.panels]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"the panel {quoted(name)} is there twice. Give one of them another name.")
        return self


def panel_contents(content: Content, table: ReproductionTable, size: Size = "laptop") -> list[tuple[str, Content]]:
    """Each panel's name ('' if it is the only one) and its experiment, with `expect` beside the other tables."""
    base = {**content, "expect": table.expect}
    panels: list[PanelTable | None] = [*table.panels] or [None]
    made = []
    for panel in panels:
        changes: list[ChangeTable] = [panel] if panel else []
        if size == "paper":
            changes += [table.paper, *([panel.paper] if panel else [])]
        whole = base
        for change in changes:
            whole = _changed(whole, change)
        if panel:
            named = {"name": f"{content.get('name', '')}-{panel.name}", "title": _titled(content, panel)}
            whole = {**whole, **named}
        made.append((panel.name if panel else "", whole))
    return made


def _titled(content: Content, panel: PanelTable) -> str:
    title = content.get("title")
    return f"{title}: {panel.title or panel.name}" if isinstance(title, str) and title else panel.title


def _changed(content: Content, change: ChangeTable) -> Content:
    said = change.model_dump(include={"problem", "network", "run", "tuning", "report", "expect"}, exclude_defaults=True)
    tables = {name: _merged(content.get(name, {}), keys) for name, keys in said.items()}
    methods = content.get("methods")
    if not isinstance(methods, list):  # what is no list of methods is refused where the experiment is read
        return {**content, **tables}
    if "iterations" in change.run:
        methods = [_without_iterations(method) for method in methods]
    for method in change.methods:
        at = [k for k, other in enumerate(methods) if _key(other) == _key(method)]
        methods = [_merged(other, method) if k in at else other for k, other in enumerate(methods)] + ([] if at else [method])
    if unknown := set(change.without) - {_key(method) for method in methods}:
        raise InvalidInput(f"[reproduction]: without names {quoted(unknown.pop())}, which does not race. Remove it.")
    return {**content, **tables, "methods": [method for method in methods if _key(method) not in change.without]}


def _merged(base: Any, change: Content) -> Any:
    """Tables within tables key by key; anything else is replaced."""
    if not isinstance(base, dict):
        return base
    inside = {key: _merged(base[key], value) for key, value in change.items() if isinstance(value, dict) and key in base}
    return {**base, **change, **inside}


def _without_iterations(method: Any) -> Any:
    return {key: value for key, value in method.items() if key != "iterations"} if isinstance(method, dict) else method


def _key(method: Any) -> str:
    """As MethodTable.key says it, of a table that nobody has looked at yet."""
    if not isinstance(method, dict):
        return ""
    try:
        return str(MethodTable.model_construct(**method).key)
    except (TypeError, AttributeError):
        return shortened(method.get("name", ""))
