"""Break the source on purpose, one place at a time, and see the tests that guard it fail.

A test that passes with its feature removed guards nothing. Each mutant below replaces one piece of
source text and names the tests that must then turn red; the same tests must pass on the source as
it is. Run it with `make mutants`, or `python tools/mutants.py NAME ...` for some of them.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
TIMEOUT = 900  # seconds for one run of pytest


@dataclass(frozen=True)
class Mutant:
    """One deliberate error.

    `find` occurs exactly once in `file` (relative to src/). Each of `tests` (a file, or a node id
    with or without its parameters) must have a failing case; `keyword` narrows them as -k does.
    """

    name: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]
    keyword: str = ""


MUTANTS: tuple[Mutant, ...] = ()


class MutantError(Exception):
    """A mutant that cannot be judged: its entry is wrong, or its run proves nothing."""


# A pytest plugin: says which copy of the package was under test, and how each test ended.
PLUGIN = """
import json, os, sys

outcomes = {}

def pytest_runtest_logreport(report):
    if report.when == "call":
        outcomes[report.nodeid] = report.outcome
    elif report.outcome != "passed":
        outcomes.setdefault(report.nodeid, "skipped" if report.skipped else "error")

def pytest_sessionfinish(session, exitstatus):
    package = sys.modules.get("orthogp")
    found = getattr(package, "__file__", None)
    with open(os.environ["MUTANTS_REPORT"], "w") as file:
        json.dump({"package": found, "outcomes": outcomes}, file)
"""


def mutate(mutant: Mutant, src: Path) -> None:
    """Apply the mutant to the copy of the source in `src`."""
    path = src / mutant.file
    if not path.is_file():
        raise MutantError(f"src/{mutant.file} does not exist")
    text = path.read_text(encoding="utf-8")
    if (count := text.count(mutant.find)) != 1:
        raise MutantError(f"its text occurs {count} times in src/{mutant.file}; expected once")
    path.write_text(text.replace(mutant.find, mutant.replace), encoding="utf-8")


@cache
def outcomes(mutant: Mutant | None, tests: tuple[str, ...], keyword: str) -> dict[str, str]:
    """Node id → outcome of `tests`, run on a copy of the source with `mutant` applied, if any."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        src, report = Path(folder, "src").resolve(), Path(folder, "report.json")
        shutil.copytree(SRC, src, ignore=shutil.ignore_patterns("__pycache__"))
        if mutant is not None:
            mutate(mutant, src)
        Path(folder, "mutants_plugin.py").write_text(PLUGIN, encoding="utf-8")
        environment = {
            **os.environ,
            # Ahead of the editable install of the package.
            "PYTHONPATH": os.pathsep.join([str(src), folder]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(Path(folder, "hypothesis")),
            "MUTANTS_REPORT": str(report),
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "mutants_plugin"]
        command += ["-p", "no:cacheprovider", *tests, *(["-k", keyword] if keyword else [])]
        try:
            run = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                timeout=TIMEOUT,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
        except subprocess.TimeoutExpired:
            raise MutantError(f"pytest ran for more than {TIMEOUT} s") from None
        # 0: all passed; 1: some failed. The rest (collection errors, no tests) prove nothing.
        if run.returncode not in (0, 1):
            tail = "\n".join((run.stdout + run.stderr).splitlines()[-15:])
            raise MutantError(f"pytest stopped with exit code {run.returncode}\n{tail}")
        result = json.loads(report.read_text(encoding="utf-8"))
        if not result["package"] or not Path(result["package"]).is_relative_to(src):
            raise MutantError(f"the tests ran {result['package']}, not the copy in {src}")
        return result["outcomes"]


def belongs(nodeid: str, test: str) -> bool:
    """Whether the test case `nodeid` is one of those that `test` names."""
    return nodeid == test or nodeid.startswith((test + "::", test + "["))


def verdict(mutant: Mutant) -> str:
    """Say "killed", or what is wrong with the tests of this mutant."""
    before = outcomes(None, mutant.tests, mutant.keyword)
    if red := [nodeid for nodeid, outcome in before.items() if outcome in ("failed", "error")]:
        return f"fails without the mutant: {', '.join(red)}"
    after = outcomes(mutant, mutant.tests, mutant.keyword)
    failed = [nodeid for nodeid, outcome in after.items() if outcome == "failed"]
    green = [test for test in mutant.tests if not any(belongs(nodeid, test) for nodeid in failed)]
    return f"SURVIVED {', '.join(green)}" if green else "killed"


def main(names: list[str]) -> int:
    if unknown := set(names) - {mutant.name for mutant in MUTANTS}:
        print(f"no such mutant: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    width = max((len(mutant.name) for mutant in chosen), default=0)
    killed = 0
    for mutant in chosen:
        try:
            said = verdict(mutant)
        except MutantError as error:
            said = f"ERROR {error}"
        killed += said == "killed"
        print(f"{mutant.name:<{width}}  {said}", flush=True)
    print(f"{killed} of {len(chosen)} mutants killed")
    return 0 if killed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
