"""Sphinx's settings. `python3 dev.py docs` builds with warnings as errors, without a network."""

import warnings
from importlib.metadata import version as version_of

project = "forebay"
author = "the forebay authors"
project_copyright = "the forebay authors"
version = release = version_of("forebay")

# No intersphinx: it would fetch inventories, and a build must not need the network.
extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
warnings.filterwarnings("ignore", "TypedStorage is deprecated")  # autodoc looks at its properties

default_role = "code"  # one backtick in a docstring means what it means in these pages

html_theme = "furo"
html_title = "forebay"
html_show_copyright = False


def setup(app):
    app.connect("autodoc-skip-member", lambda app, what, name, obj, skip, options: _says_nothing(obj) or None)


def _says_nothing(obj) -> bool:
    """Whether it is the field of a named tuple, whose docstring Python made."""
    return (getattr(obj, "__doc__", None) or "").startswith("Alias for field number")
