"""Turns docs/examples/*.py into pages: prose and code from the script, results from its last run.

`tools/build_docs.py` runs the scripts and leaves a folder for each: `cells.json` and the figures.
Drawings, `![…](assets/NAME.svg)`, and figures become part of the page, in the colours of its text.
"""

import ast
import hashlib
import html
import json
import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

HERE = Path(__file__).parent
STORED = HERE / "examples" / "stored"
BUILT = Path(os.environ.get("ORTHOGP_EXAMPLES", HERE.parent / "build" / "examples"))
SETTINGS = HERE.parent / "src" / "orthogp" / "estimators" / "settings.py"
SETTINGS_MARK = "<!-- settings -->"
DRAWING = re.compile(r"^!\[(.*?)\]\((assets/\w+\.svg)\)$", flags=re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for script in sorted((HERE / "examples").glob("*.py")):
        text = page(script)
        files.append(File.generated(config, f"examples/{script.stem}.md", content=text))
    return files


def on_page_markdown(markdown: str, **_) -> str:
    if SETTINGS_MARK in markdown:
        markdown = markdown.replace(SETTINGS_MARK, settings_tables())
    return DRAWING.sub(
        lambda found: figure((HERE / found[2]).read_text(encoding="utf-8"), found[1]), markdown
    )


def page(script: Path) -> str:
    """The Markdown of one example."""
    outputs = read_outputs(script)
    parts = []
    for number, (kind, source) in enumerate(split_cells(script.read_text(encoding="utf-8"))):
        if kind == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        parts.extend(results(outputs[number]))
    name = script.name
    parts.append(f"---\n\nThe whole script: [{name}]({name}){{ download }}")
    return "\n\n".join(parts) + "\n"


def read_outputs(script: Path) -> list[dict]:
    """What every cell of a script gave, its figures read."""
    for folder in (BUILT, STORED):
        path = folder / script.stem / "cells.json"
        if not path.exists():
            continue
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["code"] != fingerprint(script):
            raise PluginError(
                f"{path} is of another version of {script.name}; run it again with "
                "`python tools/build_docs.py --slow`"
            )
        return [
            cell | {"svg": [(path.parent / figure).read_text() for figure in cell["figures"]]}
            for cell in found["cells"]
        ]
    raise PluginError(f"{script.name} has not been run; build with `python tools/build_docs.py`")


def fingerprint(script: Path) -> str:
    """Of the code of a script: prose may change without a new run."""
    cells = split_cells(script.read_text(encoding="utf-8"))
    code = "\n".join(source for kind, source in cells if kind == "python")
    return hashlib.sha256(code.encode()).hexdigest()


def results(cell: dict) -> list[str]:
    found = []
    if cell["text"].strip():
        found.append(f'```text title="Output"\n{cell["text"].rstrip()}\n```')
    found.extend(figure(*pair) for pair in zip(cell["svg"], cell["titles"], strict=True))
    return found


def figure(svg: str, title: str) -> str:
    """An SVG file as an HTML figure whose black is the colour of the text around it."""
    label = html.escape(title, quote=True)
    body = svg[svg.index("<svg") :].replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    body = body.replace("#000000", "currentColor")
    body = re.sub(r"<text (?![^>]*fill)", '<text fill="currentColor" ', body)
    # A blank line would end the block of HTML.
    body = "\n".join(line for line in body.splitlines() if line.strip())
    caption = f"<figcaption>{html.escape(title)}</figcaption>"
    return f'<figure class="result">\n{body}\n{caption}\n</figure>'


def settings_tables() -> str:
    """The docstring of the estimators' settings as one table for each of its groups."""
    source = ast.parse(SETTINGS.read_text(encoding="utf-8"))
    owner = next(n for n in source.body if isinstance(n, ast.ClassDef) and n.name == "Settings")
    # Names that go on in the next line belong to its description.
    text = re.sub(r",\n {4}(?=\w+, )", ", ", ast.get_docstring(owner) or "")
    lines = []
    for line in text.splitlines()[1:]:
        entry = re.match(r"    (\w+(?:, \w+)*): (.*)$", line)
        if entry:
            names = ", ".join(f"`{name}`" for name in entry[1].split(", "))
            lines.append(f"| {names} | {entry[2]}")
        elif line.startswith("    "):
            lines[-1] += " " + line.strip()
        elif line:
            lines += ["", f"### {line}", "", "| setting | |", "|---|---|"]
    return "\n".join(lines)


def split_cells(text: str) -> list[tuple[str, str]]:
    """(kind, source) of every cell of a script in percent format."""
    cells = []
    for block in text.split("# %%")[1:]:
        head, _, source = block.partition("\n")
        if head.strip() == "[markdown]":
            lines = [line.removeprefix("#").removeprefix(" ") for line in source.splitlines()]
            cells.append(("markdown", "\n".join(lines).strip()))
        else:
            cells.append(("python", source.strip("\n")))
    return cells
