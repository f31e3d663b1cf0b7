# SPDX-License-Identifier: Apache-2.0
"""The documentation site: `make docs`."""

import re

from pygments.lexers.special import TextLexer
from sphinx.util.typing import stringify_annotation

import ckptfmt
from ckptfmt._base.renaming import Rename

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
# Docstrings write code as `load` and values as "full".
default_role = "code"
smartquotes_action = "D"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_use_ivar = True
# Types that are long, and what to show of them: the texts of the arguments say the rest.
SHORT = {
    "ndarray[tuple[Any, ...], dtype[Any]]": "ndarray",
    stringify_annotation(Rename, "smart"): "Mapping | Callable | Sequence[tuple]",
}


# Files of the repository that are pages of the site.
PAGES = {
    "README.md": "index.md",
    "SECURITY.md": "generated/security.md",
    "spec/": "generated/spec/",
}


def setup(app):
    """Show the specification's blocks of bytes as text, long types as short ones, no constructor
    that only the package calls, and names in tables in lines that end at dots and underscores."""
    app.add_lexer("hex", TextLexer)
    app.connect("source-read", lead_to_pages)
    # Before autodoc writes the types that it has found beside the texts.
    app.connect("object-description-transform", shorten, priority=100)
    app.connect("autodoc-process-signature", hide_constructor)
    app.connect("html-page-context", break_names)


def shorten(app, *_):
    """Replace the long types that autodoc has found so far."""
    for types in app.env.current_document.autodoc_annotations.values():
        for name in types:
            for long, short in SHORT.items():
                types[name] = types[name].replace(long, short)


def lead_to_pages(app, name, source):
    """Make links to files that are pages of the site lead to these."""
    up = "../" * (name.count("/") + 1)
    for path, page in PAGES.items():
        source[0] = source[0].replace(f"]({up}{path}", f"]({up[3:]}{page}")


def hide_constructor(app, what, name, *_):
    """Show no arguments of TensorHandle, which only readers make."""
    return ("", None) if name == "ckptfmt.types.TensorHandle" else None


def break_names(app, page, template, context, doctree):
    """Allow line breaks after the dots, underscores and slashes of code in tables."""

    def in_table(found):
        code = r'(?<=<span class="pre">)[^<]+'
        return re.sub(code, lambda c: re.sub(r"(?<=\w)[._/](?=\w)", r"\g<0><wbr>", c[0]), found[0])

    context["body"] = re.sub("<table.*?</table>", in_table, context.get("body", ""), flags=re.S)
