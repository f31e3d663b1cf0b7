# SPDX-License-Identifier: Apache-2.0
"""The documentation site: `make docs`."""

from pygments.lexers.special import TextLexer

import ckptfmt

project = "ckptfmt"
author = "The ckptfmt developers"
version = release = ckptfmt.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"ckptfmt {release}"
exclude_patterns = ["build"]
html_static_path = ["static"]
html_css_files = ["ckptfmt.css"]
myst_heading_anchors = 3
# Links to files of the repository outside of docs/ are checked by tests/project/test_pages.py.
suppress_warnings = ["myst.xref_missing"]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_use_ivar = True


def setup(app):
    """Show the specification's blocks of bytes as text."""
    app.add_lexer("hex", TextLexer)
