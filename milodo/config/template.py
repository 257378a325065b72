"""The experiment that `milodo init` writes."""

from __future__ import annotations

from pathlib import Path

TEMPLATE = Path(__file__).with_name("template.toml")


def template(path: Path) -> str:
    """A complete, commented experiment, to be written to this file."""
    text = TEMPLATE.read_text(encoding="utf-8")
    return text.replace("@NAME@", path.name).replace("@STEM@", path.stem)
