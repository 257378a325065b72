"""The site: `make docs`, then open docs/_build/index.html. Nothing in it asks another host for anything."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]

from milodo.version import __version__  # noqa: E402

project, author, release = "milodo", "The milodo developers", __version__
copyright = "the milodo developers, Apache-2.0"

extensions = ["sphinx.ext.autodoc", "myst_parser", "mathml", "plain_docstrings", "reference", "source_pages"]
exclude_patterns = ["_build", "_ext", "records/**", "gallery/**"]
language = "en"
highlight_language = "text"
smartquotes = False  # --resume is an option, not a dash
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"

myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 4
myst_url_schemes = ("http", "https", "mailto", "repository")

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
add_module_names = False
python_display_short_literal_types = True
python_maximum_signature_line_length = 100

html_theme = "furo"
html_title = f"milodo {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b63a5", "color-brand-content": "#0b63a5"},
    "dark_css_variables": {"color-brand-primary": "#6db5f0", "color-brand-content": "#6db5f0"},
}
