"""The course as static pages that work offline: build/book/index.html and one page a chapter.

    python tools/make_book.py [FOLDER]          # build/book by default

nbconvert turns each notebook into a page with its maps alive; this adds what it lacks: links
between the chapters, a first page with the table of chapters and a search, and the dark theme. No
page asks the network for anything.
"""

from __future__ import annotations

import json
import re
import sys
from html import escape
from pathlib import Path

import nbformat
from jupyter_core.paths import jupyter_path
from markdown_it import MarkdownIt
from nbconvert import HTMLExporter
from nbformat import NotebookNode

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
TEMPLATES = Path(__file__).parent / "book"
THEME = "nbconvert/templates/lab/static/theme-dark.css"


def export(path: Path) -> str:
    """One notebook as a page that needs nothing else."""
    exporter = HTMLExporter(mathjax_url="", require_js_url="", jquery_url="")
    html, _ = exporter.from_filename(str(path))
    return re.sub(r'<script[^>]*src="[^"]*"[^>]*></script>', "", html)


def dark_colours() -> str:
    """The colours of JupyterLab's dark theme: the custom properties of its :root."""
    for folder in jupyter_path():
        path = Path(folder) / THEME
        if path.exists():
            block = re.search(r":root\s*\{(.*?)\n\}", path.read_text(encoding="utf-8"), re.S)
            return re.sub(r"/\*.*?\*/", "", block.group(1), flags=re.S)
    raise ValueError(f"{THEME} is nowhere under {jupyter_path()}")


def title_of(notebook: NotebookNode) -> str:
    """The first heading, for example "4 · The block allocator"."""
    return notebook.cells[0].source.splitlines()[0].lstrip("# ")


def goals_of(notebook: NotebookNode) -> list[str]:
    """What the reader will learn: the bullets of the first cell, as HTML."""
    lines = re.findall(r"^- (.*(?:\n  .*)*)", notebook.cells[0].source, re.M)
    return [MarkdownIt().renderInline(" ".join(line.split())) for line in lines]


def chapter_page(html: str, titles: dict[str, str], name: str) -> str:
    """The exported page with a bar on top, its links leading to pages, and both themes."""
    names = list(titles)
    place = names.index(name)
    bar = ['<a href="index.html">All chapters</a>']
    for arrow, other in (("←", place - 1), ("→", place + 1)):
        if 0 <= other < len(names):
            words = escape(titles[names[other]])
            text = f"{arrow} {words}" if arrow == "←" else f"{words} {arrow}"
            bar.append(f'<a href="{names[other]}.html">{text}</a>')
    nav = f'<nav class="book-bar">{" ".join(bar)}{(TEMPLATES / "toggle.html").read_text()}</nav>'
    html = re.sub(r'href="(\d\d_\w+)\.ipynb', r'href="\1.html', html)
    html = re.sub(r"<title>.*?</title>", f"<title>{escape(titles[name])} · minivllm</title>", html)
    html = html.replace("</head>", f"<style>{style()}</style>\n</head>", 1)
    return re.sub(r"(<body[^>]*>)", lambda body: body.group(1) + nav, html, count=1)


def style() -> str:
    """The pages' own style; {{dark}} stands for the dark theme's colours."""
    sheet = (TEMPLATES / "book.css").read_text(encoding="utf-8")
    return sheet.replace("{{dark}}", dark_colours())


def index_page(notebooks: dict[str, NotebookNode]) -> str:
    """The table of chapters, with a search over all text and code."""
    rows, texts = [], {}
    for name, notebook in notebooks.items():
        number, title = title_of(notebook).split(" · ", 1)
        goals = "<br>".join(goals_of(notebook))
        link = f'<a href="{name}.html">{escape(title)}</a>'
        rows.append(f"<tr><td>{number}</td><td>{link}</td><td>{goals}</td></tr>")
        texts[name] = {
            "title": title_of(notebook), "cells": [cell.source for cell in notebook.cells]
        }  # fmt: skip
    data = json.dumps(texts).replace("<", "\\u003c")
    page = (TEMPLATES / "index.html").read_text(encoding="utf-8")
    toggle = (TEMPLATES / "toggle.html").read_text(encoding="utf-8")
    for mark, value in (("rows", "\n".join(rows)), ("style", style()), ("toggle", toggle),
                        ("data", data)):  # fmt: skip
        page = page.replace("{{" + mark + "}}", value)
    return page


def main(folder: str | Path = "build/book") -> None:
    """Write the index and every chapter."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))
    notebooks = {path.stem: nbformat.read(path, as_version=4) for path in paths}
    titles = {name: title_of(notebook) for name, notebook in notebooks.items()}
    for path in paths:
        page = chapter_page(export(path), titles, path.stem)
        (folder / f"{path.stem}.html").write_text(page, encoding="utf-8")
    (folder / "index.html").write_text(index_page(notebooks), encoding="utf-8")
    print(f"{len(paths)} chapters: {folder / 'index.html'}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
