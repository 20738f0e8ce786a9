"""The HTML around block_map.js: in a notebook's output, and as a page of its own.

The text map comes first and the trace as JSON after it; the module then puts the interactive map in
its place, so where scripts are not run the text remains. Invariant: nothing in it is random, and
nothing of a trace can become markup.
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

MODULE = Path(__file__).with_name("block_map.js")
# Several maps may share a page, and ids would differ from run to run: a host is found by its class.
MOUNT_ALL = """
for (const host of document.querySelectorAll(".mv-host:not([data-mounted])")) {
  mount(host, JSON.parse(host.querySelector('script[type="application/json"]').textContent));
}
"""
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ margin: 16px; background: Canvas; color: CanvasText; }}
main {{ max-width: 1280px; margin: 0 auto; }}
h1 {{ font: 600 20px/1.4 system-ui, sans-serif; margin: 0 0 12px; }}
</style>
</head>
<body>
<main>
<h1>{title}</h1>
{body}
</main>
</body>
</html>
"""


def map_html(text: str, payload: dict[str, Any]) -> str:
    """The map for a page: text, data, and the module that turns them into the live map."""
    # No "<" in the data, or a request named </script> would end it.
    data = json.dumps(payload, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<div class="mv-host"><pre>{escape(text)}</pre>'
        f'<script type="application/json">{data}</script></div>\n'
        f'<script type="module">\n{module_source()}{MOUNT_ALL}</script>'
    )


def page_html(title: str, body: str) -> str:
    """A whole page that needs no network; light or dark as the reader's system is."""
    return PAGE.format(title=escape(title), body=body)


def module_source() -> str:
    """block_map.js without its comment lines and indentation: it is stored with every map."""
    lines = (line.strip() for line in MODULE.read_text(encoding="utf-8").splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//")) + "\n"
