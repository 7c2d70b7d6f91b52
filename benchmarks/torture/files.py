"""Mutated model and checkpoint files, loaded: none may crash, hang, execute or write anything.

    python benchmarks/torture/files.py [--count 10000] [--seed 0] [--workers 2] [--kinds KIND,...]
        [--keep FOLDER] [--originals FOLDER]

Each worker is limited in memory, each file in time, and an audit hook of Python's tells of imports,
executions and writes. A file that loads must give the same predictions or other finite ones, or
refuse them. One line at the end; files that did anything else are kept in FOLDER, with what they
did, and the exit status is 1.
"""

import argparse
import json
import os
import random
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

MEMORY = 2**30
SECONDS_A_FILE = 20.0
SECONDS_TO_START = 300.0


def work(options: argparse.Namespace) -> None:
    """A worker: tries the files START, START + STEP, …, and prints a line about each."""
    from forgeries import mutant
    from originals import LOADERS
    from trial import Watch, limit_memory, peak_memory, try_file

    folder = Path(options.folder)
    kinds = options.kinds.split(",")
    found = sorted(Path(options.originals).iterdir())
    paths = [path for path in found if path.name.partition("-")[0] in kinds]
    contents = [path.read_bytes() for path in paths]
    scratch = folder / f"worker-{os.getpid()}"
    scratch.mkdir()
    watch, expected = Watch(scratch), []
    for _ in range(2):
        # Once to know what is right, once to see that nothing is imported late.
        expected = []
        for path, content in zip(paths, contents, strict=True):
            copy = scratch / path.name
            copy.write_bytes(content)
            expected.append(LOADERS[path.name.partition("-")[0]](copy).predictions())
    limit_memory(MEMORY)
    base = peak_memory()
    for number in range(options.start, options.count, options.step):
        rng = random.Random(options.seed * 10**9 + number)
        which = rng.randrange(len(paths))
        content = mutant(rng, contents[which], contents)
        path = scratch / paths[which].name
        path.write_bytes(content)
        verdict = try_file(path, expected[which], watch, SECONDS_A_FILE)
        if verdict.detail and options.keep:
            copy = Path(options.keep) / f"{number}-{paths[which].name}"
            copy.write_bytes(content)
            copy.with_suffix(".txt").write_text(f"{verdict.outcome}\n{verdict.detail}\n")
        print(json.dumps([number, verdict.outcome, peak_memory() - base]), flush=True)


class Crew:
    """Workers, each started anew behind the file that it died or hung on."""

    def __init__(self, options: argparse.Namespace, folder: Path):
        self.options, self.folder = options, folder
        self.counts: Counter[str] = Counter()
        self.memory, self.lock = 0, threading.Lock()

    def run(self) -> None:
        shares = range(self.options.workers)
        threads = [threading.Thread(target=self._share, args=(first,)) for first in shares]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _share(self, start: int) -> None:
        while start < self.options.count:
            process = self._worker(start)
            done, hung = self._listen(process)
            process.kill()
            process.wait()
            start += self.options.workers * done
            if start < self.options.count:
                with self.lock:
                    self.counts["hung" if hung else "crashed"] += 1
                print(f"file {start}: the worker {'hung' if hung else 'died'}", file=sys.stderr)
                start += self.options.workers

    def _worker(self, start: int) -> subprocess.Popen[str]:
        o = self.options
        arguments = [
            "--folder", self.folder, "--start", start, "--step", o.workers, "--count", o.count,
            "--seed", o.seed, "--keep", o.keep, "--kinds", o.kinds, "--originals", o.originals,
        ]  # fmt: skip
        return subprocess.Popen(
            [sys.executable, __file__, *map(str, arguments)], stdout=subprocess.PIPE, text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def _listen(self, process: subprocess.Popen[str]) -> tuple[int, bool]:
        """How many files it got through, and whether it hung on the next."""
        done, patience = 0, SECONDS_TO_START
        assert process.stdout is not None
        while True:
            ready, _, _ = select.select([process.stdout], [], [], patience)
            if not ready:
                return done, True
            line = process.stdout.readline()
            if not line:
                return done, False
            _, outcome, memory = json.loads(line)
            done, patience = done + 1, 2 * SECONDS_A_FILE
            with self.lock:
                self.counts[outcome] += 1
                self.memory = max(self.memory, memory)


def summary(counts: Counter[str], memory: int, seconds: float) -> str:
    total = sum(counts.values())
    loaded = counts["equal"] + counts["another model"]
    late = counts["refused later"]
    return (
        f"files: {total} mutants, {counts['refused']} refused, {loaded} loaded "
        f"({counts['equal']} with equal and {counts['another model']} with other finite "
        f"predictions), {late} refused when used, {counts['crashed']} crashed, "
        f"{counts['hung']} hung, {counts['executed']} executed, {counts['not finite']} not finite; "
        f"at most {memory / 2**20:.0f} MiB above the start, "
        f"{60 * total / seconds:.0f} files a minute"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Loads mutated model and checkpoint files.")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", default="", help="where to keep the files that did wrong")
    parser.add_argument("--kinds", default="model,regressor,classifier,table,checkpoint")
    parser.add_argument("--originals", default="", help="where to leave the valid files")
    for name in ("--folder", "--start", "--step"):
        parser.add_argument(name, type=str if name == "--folder" else int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder is not None:
        work(options)
        return 0
    if options.keep:
        Path(options.keep).mkdir(parents=True, exist_ok=True)
    from originals import write_originals

    with tempfile.TemporaryDirectory() as folder:
        options.originals = options.originals or str(Path(folder) / "originals")
        write_originals(Path(options.originals))
        crew, began = Crew(options, Path(folder)), time.monotonic()
        crew.run()
    print(summary(crew.counts, crew.memory, time.monotonic() - began))
    return int(any(crew.counts[name] for name in ("crashed", "hung", "executed", "not finite")))


if __name__ == "__main__":
    sys.exit(main())
