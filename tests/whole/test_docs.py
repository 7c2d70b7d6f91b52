"""The documentation builds without a warning, and the Python on its pages runs."""

import json
import pkgutil
import re
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import matplotlib
import pytest
import torch

from orthogp.training import log_noise, predictive, sites

ROOT = Path(__file__).parents[2]
PAGES = sorted(p for p in (ROOT / "docs").rglob("*.md") if "```python" in p.read_text())
EXAMPLES = sorted(p.stem for p in (ROOT / "docs" / "examples").glob("*.py"))
# Fewer steps than a reader takes, enough for what a page asserts.
STEPS = {"extending": 60}


class Fetched(HTMLParser):
    """What a browser would load to show a page."""

    def __init__(self, text: str):
        super().__init__()
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video", "audio"):
            self.addresses.append(given.get("src") or "")
        if tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.addresses.append(given.get("href") or "")


@pytest.fixture
def short_searches(monkeypatch):
    for name in ("EVIDENCE_STEPS", "PATCH_STEPS", "LEAVE_ONE_OUT_STEPS", "EVALUATIONS"):
        monkeypatch.setattr(predictive, name, 30)
    for module, name in ((sites, "STEPS"), (sites, "SCALE_STEPS"), (log_noise, "STEPS")):
        monkeypatch.setattr(module, name, 5)
    monkeypatch.setattr(log_noise, "ROUNDS", 1)


@pytest.fixture
def docs(short_searches, monkeypatch):
    """The program that builds the pages."""
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason="needs the extra `docs`")
    monkeypatch.syspath_prepend(ROOT / "tools")
    import build_docs  # pyright: ignore[reportMissingImports]

    with torch.random.fork_rng(), matplotlib.rc_context():
        yield build_docs


@pytest.fixture
def site(docs, tmp_path, monkeypatch):
    """The pages, with the results of examples that were trained by a few steps."""
    outputs = tmp_path / "examples"
    monkeypatch.chdir(tmp_path)
    for name in EXAMPLES:
        if name not in docs.SLOW:
            docs.run_cells(ROOT / f"docs/examples/{name}.py", outputs / name, brief=True)
    docs.build_site(tmp_path / "site", outputs)
    return tmp_path / "site"


def test_the_site_builds_and_its_pages_ask_no_other_host(site):
    pages = list(site.rglob("*.html"))
    for page in pages:
        for address in Fetched(page.read_text()).addresses:
            assert not re.match(r"(https?:)?//", address), f"{page} loads {address}"
    for style in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", style.read_text()), style
    # Each example shows its results: text, and figures that are well-formed.
    for name in EXAMPLES:
        text = (site / "examples" / f"{name}.html").read_text()
        figures = re.findall(r"<svg role=\"img\".*?</svg>", text, flags=re.DOTALL)
        assert "Output" in text
        assert figures
        for figure in figures:
            ElementTree.fromstring(figure)
    # Every public name is found by the search.
    index = json.loads((site / "search" / "search_index.json").read_text())
    titles = " ".join(entry["title"] for entry in index["docs"])
    for name in ("OrthogonalGPRegressor", "OrthogonalVariationalStrategy", "TrainingConfig", "fit"):
        assert name in titles


MEMBERS = re.compile(r"^::: ([\w.]+)\n(?:    .*\n)*?      members: \[(\w[^\]]*)\]", re.MULTILINE)


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "api").glob("*.md")), ids=lambda p: p.stem)
def test_members_that_an_api_page_names_are_in_their_module(page):
    """Those that are not are left out of the page without a warning."""
    for name, members in MEMBERS.findall(page.read_text()):
        place = pkgutil.resolve_name(name)
        for member in members.split(", "):
            found = getattr(place, member)
            if isinstance(place, ModuleType):
                # What a module has only imported is not shown with it.
                assert found.__module__.startswith(name), f"{member} is not in {name}"


def test_the_example_of_optimisation_runs_in_brief(docs, tmp_path):
    """Its results on the page are stored ones."""
    pytest.importorskip("botorch")
    script, text = tmp_path / "brief.py", (ROOT / "docs/examples/optimisation.py").read_text()
    # 300 evaluations in five rounds, one of them with a fit.
    script.write_text(text.replace("START, BATCH = 20, 200, 100", "START, BATCH = 20, 60, 48"))
    docs.run_cells(script, tmp_path, brief=True)
    text = " ".join(c["text"] for c in json.loads((tmp_path / "cells.json").read_text())["cells"])
    best, random = (float(v) for v in re.findall(r"^ +300 +(\S+) +(\S+)", text, re.MULTILINE)[0])
    assert best > random + 2.0
    assert len(list(tmp_path.glob("*.svg"))) == 1


@pytest.mark.usefixtures("short_searches")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_python_on_a_page_runs(page, tmp_path, monkeypatch):
    """All blocks of a page, one after another, in one namespace."""
    if "orthogp.botorch import" in page.read_text():
        pytest.importorskip("botorch")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for number, code in enumerate(
            re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        ):
            steps = STEPS.get(page.stem, 20)
            code = code.replace("max_steps=500", f"max_steps={steps}")
            code = code.replace("range(300)", "range(3)")
            exec(compile(code, f"{page.name}, block {number}", "exec"), names)
