"""Sphinx configuration. `python3 dev.py docs` builds with warnings as errors, without network access."""

import sys
import warnings
from importlib.metadata import version as distribution_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for the extensions of this folder

project = "forebay"
author = project_copyright = "forebay contributors"
version = release = distribution_version("forebay")

# No intersphinx: it would download inventories, and a build must not need the network.
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
extensions += ["code_note", "profile_table", "program_table", "written_functions"]  # of this folder
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"  # and every result, which not all docstrings repeat
warnings.filterwarnings("ignore", "TypedStorage is deprecated")  # autodoc reads the properties of storages

napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_preprocess_types = True
napoleon_type_aliases = {  # several modules have classes of these names
    "device": ":py:class:`~forebay.device`",
    "Stream": ":py:class:`~forebay.Stream`",
    "Event": ":py:class:`~forebay.Event`",
    "MemPool": ":py:class:`~forebay.memory.MemPool`",
}
strip_signature_backslash = True  # napoleon then escapes parameter names that end in an underscore

default_role = "code"  # single backticks mark code in docstrings as in these pages

html_theme = "furo"
html_title = "forebay"
html_show_copyright = False


def setup(app):
    app.connect("autodoc-skip-member", _skip_member)


def _skip_member(app, kind, name, member, skip, options):
    """Skip fields of named tuples, whose docstrings Python generates."""
    return (getattr(member, "__doc__", None) or "").startswith("Alias for field number") or None
