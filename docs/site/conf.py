"""Sphinx's settings of the documentation site. `slm2_web.compile.docs` runs it.

Nothing here depends on the day, the machine or the network, and a page loads nothing but its own folder's
style sheet, script and index. Pages are the Markdown files of docs/, as they are read in the repository too.
NAV is the order of the menu; pages that it doesn't name come last.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder

HERE = Path(__file__).parent
API = ("client", "slm2-chat", "prompt-api", "openai", "stored", "markdown-view", "isolation", "offline")

NAV: list[tuple[str, tuple[str, ...]]] = [
    ("Start", ("index", "quickstart", "embedding", "browsers")),
    ("In a page", ("element", "client", "openai", "prompt-api", "page")),
    ("JavaScript API", ("api/index", *(f"api/{name}" for name in API))),
    ("Python", ("cli", "python", "building")),
    ("Formats and contracts", ("formats", "transcript", "protocol", "certificate")),
    (
        "How it works",
        ("equal", "forward", "tokenizer", "template", "prompt", "sampling", "constrain", "parity", "bench"),
    ),
    ("When something is wrong", ("troubleshooting", "errors", "security")),
]
_named = {page for _, pages in NAV for page in pages}
_others = sorted(
    path.relative_to(HERE.parent).with_suffix("").as_posix()
    for path in HERE.parent.rglob("*.md")
    if HERE not in path.parents
)
if _more := tuple(page for page in _others if page not in _named):
    NAV.append(("More", _more))

project = "slm2-web"
project_copyright = ""
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["site"]
root_doc = "index"
default_role = "code"
highlight_language = "none"
suppress_warnings = ["myst.header"]
myst_heading_anchors = 6
myst_all_links_external = False
nitpicky = True
# What the docstrings' signatures name of others.
nitpick_ignore_regex = [("py:.*", r".*")]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "undoc-members": False, "show-inheritance": True}
python_maximum_signature_line_length = 88
html_theme = "theme"
html_theme_path = [str(HERE)]
html_use_index = False
html_domain_indices = False
html_copy_source = False
html_last_updated_fmt = None
html_permalinks_icon = "#"
html_scaled_image_link = False
smartquotes = False


class SiteBuilder(StandaloneHTMLBuilder):
    """HTML without what needs more than the site's policy allows; and an index for docs.js."""

    name = "html"
    search: ClassVar[bool] = False  # type: ignore[misc]

    def finish(self) -> None:
        """The pages, and search.json: [page, anchor, page's title, heading, text] of each section."""
        super().finish()
        entries: list[list[str]] = []
        for name in (page for _, pages in NAV for page in pages):
            entries += sections(name, self.env.get_doctree(name))
        text = json.dumps(entries, ensure_ascii=False, separators=(",", ":"))
        (Path(self.outdir) / "search.json").write_text(text + "\n", "utf-8")


def sections(name: str, tree: nodes.document) -> list[list[str]]:
    """The entries of a page, its sections each with the text that is in none below."""
    found: list[list[str]] = []
    title = ""
    for section in tree.findall(nodes.section):
        heading = section.next_node(nodes.title)
        if heading is None:
            continue
        title = title or heading.astext()
        parts = [
            child.astext() for child in section.children if not isinstance(child, nodes.section | nodes.title)
        ]
        text = re.sub(r"\s+", " ", " ".join(parts)).strip()
        anchor = "" if not found else section["ids"][-1]
        found.append([name, anchor, title, heading.astext(), text])
    return found


def add_contents(app: Sphinx, name: str, source: list[str]) -> None:
    """The menu's pages as the tree that Sphinx wants: it warns of a page that is in none."""
    if name == root_doc:
        pages = "\n".join(page for _, pages in NAV for page in pages if page != root_doc)
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n\n{pages}\n```\n"


def as_rst(app: Sphinx, what: str, name: str, thing: object, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text with `code`, and pictures that are indented: say so in Sphinx's language."""
    text: list[str] = []
    is_literal = False
    for number, line in enumerate(lines):
        if re.fullmatch(r"[-=~]{4,}", line) and number:
            text[-1:] = [f"**{text[-1]}**", ""]  # a heading would be one of the page's
            lines[number] = ""
            continue
        is_indented = line.startswith("    ")
        if is_indented and not is_literal:
            before = lines[number - 1].strip() if number else ""
            if before:
                line = line.strip()  # a continued line of a list such as Raises:
            else:
                text += ["::", ""]
                is_literal = True
        elif is_literal and line.strip() and not is_indented:
            text.append("")
            is_literal = False
        text.append(line if is_literal else escaped(line))
    lines[:] = [*text, ""]


def escaped(line: str) -> str:
    """The line with nothing in it that would be markup, but `code`."""
    parts = re.split(r"(`+[^`]+`+)", line.strip())
    return "".join(
        f"``{part.strip('`')}``" + ("\\ " if i + 1 < len(parts) and parts[i + 1][:1].isalnum() else "")
        if i % 2
        else re.sub(r"([\\*_|`])", r"\\\1", part)
        for i, part in enumerate(parts)
    )


def finish_page(app: Sphinx, name: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """What the layout needs; what is too wide scrolls by itself, by keyboard too; headings are not empty."""
    titles = {page: title.astext() for page, title in app.env.titles.items()} | {root_doc: "Overview"}
    context["nav"] = [(group, [(page, titles[page]) for page in pages]) for group, pages in NAV]
    body = context.get("body", "")
    body = re.sub(r'<th class="head[^"]*">(?:<p></p>)?</th>', "<td></td>", body)
    body = re.sub(r"<thead>\s*<tr[^>]*>(?:\s*<td></td>)+\s*</tr>\s*</thead>", "", body)
    # A signature's parameters in lines of their own are a list without terms, which is no list.
    body = re.sub(
        r"<dl>\s*((?:<dd>.*?</dd>\s*)+)</dl>",
        lambda found: re.sub(r"<dd>(.*?)</dd>\s*", r'<span class="parameter">\1</span>', found[1]),
        body,
    )
    body = re.sub(r"<table\b", '<div class="wide" role="group" aria-label="Table" tabindex="0"><table', body)
    body = body.replace("</table>", "</table></div>").replace("<pre>", '<pre tabindex="0">')
    context["body"] = body


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_builder(SiteBuilder, override=True)
    app.add_lexer("mermaid", TextLexer)
    app.connect("source-read", add_contents)
    app.connect("autodoc-process-docstring", as_rst)
    app.connect("html-page-context", finish_page)
