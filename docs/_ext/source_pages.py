"""Links from a page to files of the repository lead to pages of the site that show them, line by line.

On a repository host the same links lead to the files themselves: the pages are written once.
"""

from __future__ import annotations

import html
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from pygments.lexers.special import TextLexer
from pygments.util import ClassNotFound
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.transforms.post_transforms import SphinxPostTransform

SCHEME = "repository:"
LINK = re.compile(r"(?<=\]\()(?![a-z]+:)(?P<path>[^)\s#]+)(?P<line>#[^)\s]*)?(?=\))")
PLACES = {"README.md": "index", "CHANGELOG.md": "changelog", "CONTRIBUTING.md": "contributing"}
"""Files outside of docs/ that have a page."""
SHOWN_INSTEAD = {page: file for file, page in PLACES.items() if page != "index"}
"""Pages of docs/ that only point at such a file: the site shows the file."""
SHOWN = 200_000
"""Bytes; a larger file is copied instead of shown."""
HIDDEN = {"__pycache__", "_build", ".venv", ".git"}


def root(app: Sphinx) -> Path:
    return Path(app.srcdir).parent


def rewrite(app: Sphinx, docname: str, content: list[str]) -> None:
    """(../milodo/loop.py#L12) becomes (repository:milodo/loop.py#L12), wherever the page itself lies."""
    here = Path(app.env.doc2path(docname)).parent
    if docname in SHOWN_INSTEAD:
        file = root(app) / SHOWN_INSTEAD[docname]
        content[0], here = file.read_text(encoding="utf-8"), file.parent
        app.env.note_dependency(str(file))

    def link(found: re.Match[str]) -> str:
        target = (here / found["path"]).resolve()
        if not target.exists():
            return found[0]
        if not target.is_relative_to(root(app).resolve()):
            raise ExtensionError(f"{docname} links to {found['path']}, which is outside of the repository")
        inside = target.relative_to(root(app).resolve()).as_posix()
        if inside in PLACES:
            return f"/{PLACES[inside]}.md"
        if target.is_file() and target.is_relative_to(Path(app.srcdir).resolve()):
            if app.env.path2doc(str(target)) in app.project.docnames:
                return f"/{target.relative_to(Path(app.srcdir).resolve()).as_posix()}{found['line'] or ''}"
            if target.suffix in (".png", ".svg"):
                return f"/{target.relative_to(Path(app.srcdir).resolve()).as_posix()}"
        return f"{SCHEME}{inside}{found['line'] or ''}"

    content[0] = LINK.sub(link, content[0])


class ToSourcePages(SphinxPostTransform):
    """Links into the repository become links to the pages made below."""

    default_priority = 400

    def run(self, **kwargs: Any) -> None:
        for node in self.document.findall(nodes.reference):
            if not node.get("refuri", "").startswith(SCHEME):
                continue
            path, _, line = node["refuri"].removeprefix(SCHEME).partition("#")
            wanted(self.app).add(path)
            page = address(root(self.app), path)
            base = self.app.builder.get_target_uri(self.env.docname)
            node["refuri"] = "../" * base.count("/") + page + (f"#{line}" if line else "")


def wanted(app: Sphinx) -> set[str]:
    if not hasattr(app, "_source_pages"):
        app._source_pages = set()  # type: ignore[attr-defined]
    return app._source_pages  # type: ignore[attr-defined]


def shown(path: Path) -> bool:
    """Whether a file can be read on a page; others are copied."""
    if path.stat().st_size > SHOWN:
        return False
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    return True


def address(top: Path, path: str) -> str:
    """Of the page of a file or folder, from the site's root."""
    full = top / path
    return f"source/{path}.html" if full.is_dir() or shown(full) else f"source/{path}"


def pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    top, queue, done = root(app), sorted(wanted(app)), set()
    while queue:
        path = queue.pop()
        if path in done:
            continue
        done.add(path)
        full = top / path
        if full.is_dir():
            inside = sorted(entry for entry in full.iterdir() if entry.name not in HIDDEN and not entry.name.startswith("."))
            queue += [entry.relative_to(top).as_posix() for entry in inside]
            yield f"source/{path}", {"title": path, "body": listing(top, full, inside)}, "page.html"
        elif shown(full):
            yield f"source/{path}", {"title": path, "body": listed(full, path)}, "page.html"
        else:
            target = Path(app.outdir) / "source" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(full, target)


def listing(top: Path, folder: Path, entries: list[Path]) -> str:
    up = "../" * (len(folder.relative_to(top).parts))
    rows = [
        f'<li><a href="{up}{html.escape(address(top, entry.relative_to(top).as_posix()))}">{html.escape(entry.name)}</a></li>'
        for entry in entries
    ]
    return f"<h1>{html.escape(folder.relative_to(top).as_posix())}</h1><ul>{''.join(rows)}</ul>"


def listed(file: Path, path: str) -> str:
    try:
        lexer = get_lexer_for_filename(file.name)
    except ClassNotFound:
        lexer = TextLexer()
    code = highlight(file.read_text(encoding="utf-8"), lexer, HtmlFormatter(linespans="L", wrapcode=True))
    code = re.sub(r'<span id="L-(\d+)">', r'<span id="L\1" class="line">', code)
    name = html.escape(path)
    return f'<h1>{name}</h1><div class="source-page" tabindex="0" role="region" aria-label="{name}">{code}</div>'


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", rewrite)
    app.connect("html-collect-pages", pages)
    app.add_post_transform(ToSourcePages)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": False}
