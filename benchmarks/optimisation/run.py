"""Bayesian optimisation with the model for BoTorch, beside BoTorch's own models.

    python benchmarks/optimisation/run.py --out records.jsonl [--problem hartmann6] \
        [--models orthogp,exact] [--start 12] [--evaluations 80] [--batch 4] [--seeds 1] \
        [--first-seed 0] [--proposals functions] [--device cpu] [--seconds 600]

Hartmann-6, Ackley-20 on [-5, 10] or a path between obstacles in 60 dimensions, observed with a
little noise. `orthogp` is `OrthogonalGPModel`, `exact` `SingleTaskGP`, `variational`
`SingleTaskVariationalGP`, `local` a `SingleTaskGP` of a trust region that begins anew with new
points once it has shrunk, as TuRBO does, and `random` draws points. A round tells the model of the
last batch, or fits it anew where the rows have become half as many again since its last fit, and
proposes a batch: where functions of the posterior are largest in a trust region. All models share
the rules of that region, so that what differs is the model. With `--proposals improvement` all but
`local` propose by `qLogExpectedImprovement` on the whole cube.

Every round appends a line to the file: `best` is the largest value so far without noise, `seconds`
those of the round without its evaluations, `cpu_seconds` what its threads have worked in that time.
A run that was stopped, or that has ended because `--seconds` are over, goes on where it was, from
its rows in the folder records.rows, with a new fit. `picture.py` draws what the file has.
"""

import argparse
import json
import math
import time
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from models import KINDS, Kind
from objectives import PROBLEMS, Problem
from proposals import Region, by_functions, by_improvement
from torch import Tensor
from torch.quasirandom import SobolEngine


class Run:
    """One optimisation: rows, the trust region, and the model of those rows from `first` on."""

    def __init__(self, problem: Problem, kind: Kind | None, given: argparse.Namespace, seed: int):
        self.problem, self.kind, self.given, self.seed = problem, kind, given, seed
        self.region, self.first, self.round = Region(), 0, 0
        self.model, self.fitted, self.known = None, 0, 0
        torch.manual_seed(seed)
        x = self._spread(seed)
        self.x, self.y = x, problem.observe(x)

    def _spread(self, seed: int) -> Tensor:
        sobol = SobolEngine(self.problem.d, scramble=True, seed=seed)
        return sobol.draw(self.given.start, dtype=torch.float64).to(self.given.device)

    @property
    def done(self) -> bool:
        most = self.kind.most_rows if self.kind is not None else None
        limit = self.given.evaluations if most is None else most[self.x.device.type]
        return len(self.x) >= min(self.given.evaluations, limit)

    def step(self) -> dict[str, Any]:
        """One round."""
        batch = min(self.given.batch, self.given.evaluations - len(self.x))
        begun, cpu = time.perf_counter(), time.process_time()
        fits = self._update()
        new = self._proposed(batch)
        if new.is_cuda:
            torch.cuda.synchronize()
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
        y = self.problem.observe(new)
        self.x, self.y = torch.cat([self.x, new]), torch.cat([self.y, y])
        self._move_region(y)
        self.round += 1
        return {
            "round": self.round, "evaluations": len(self.x), "fit": fits,
            "best": self.problem.value(self.x).max().item(), "seconds": round(seconds, 3),
            "cpu_seconds": round(cpu, 3), "length": self.region.length,
        }  # fmt: skip

    def _update(self) -> bool:
        """Whether the model of all rows was fitted, and not only told of the new ones."""
        if self.kind is None:
            return False
        x, y = self.x[self.first :], self.y[self.first :]
        if (
            self.model is None
            or self.kind.condition is None
            or len(x) > self.kind.refit * self.fitted
        ):
            self.model, self.fitted, self.known = self.kind.fit(x, y), len(x), len(x)
            return True
        if len(x) > self.known:
            self.model = self.kind.condition(self.model, x[self.known :], y[self.known :])
            self.known = len(x)
        return False

    def _proposed(self, batch: int) -> Tensor:
        if self.kind is None:
            return torch.rand(batch, self.problem.d, dtype=torch.float64).to(self.x)
        x, y = self.x[self.first :], self.y[self.first :]
        if self.given.proposals == "improvement" and not self.kind.local:
            return by_improvement(self.model, x, y, batch).detach()
        return by_functions(self.model, x, y, batch, self.region)

    def _move_region(self, y: Tensor) -> None:
        if self.kind is None:
            return
        patience = math.ceil(max(4, self.problem.d) / self.given.batch)
        self.region = self.region.after(y.max().item(), patience)
        if not self.region.ended:
            return
        if not self.kind.local:
            self.region = replace(Region(), best=self.region.best)
            return
        # New points, and nothing is known of the old ones.
        self.region, self.first, self.model = Region(), len(self.x), None
        x = self._spread(self.seed + 1000 * self.round)
        x = x[: max(2, self.given.evaluations - len(self.x))]
        self.x, self.y = torch.cat([self.x, x]), torch.cat([self.y, self.problem.observe(x)])

    def save(self, path: Path) -> None:
        state = {
            "x": self.x.cpu(), "y": self.y.cpu(), "region": asdict(self.region),
            "first": self.first, "round": self.round, "random": torch.get_rng_state(),
        }  # fmt: skip
        part = path.with_suffix(".part")
        torch.save(state, part)
        part.replace(path)

    def resume(self, path: Path) -> None:
        state = torch.load(path)
        self.x, self.y = (state[name].to(self.x) for name in ("x", "y"))
        self.region, self.first = Region(**state["region"]), state["first"]
        self.round = state["round"]
        torch.set_rng_state(state["random"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--problem", choices=PROBLEMS, default="hartmann6")
    parser.add_argument("--models", default="orthogp,exact,random")
    parser.add_argument("--start", type=int, default=12)
    parser.add_argument("--evaluations", type=int, default=80)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--proposals", choices=("functions", "improvement"), default="functions")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=math.inf)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    deadline = time.monotonic() + given.seconds
    folder = given.out.with_suffix(".rows")
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        for name in given.models.split(","):
            run = Run(PROBLEMS[given.problem], KINDS[name], given, seed)
            rows = folder / f"{given.problem}-{given.batch}-{given.proposals}-{name}-{seed}.pt"
            if rows.exists():
                run.resume(rows)
            what = {
                "problem": given.problem, "model": name, "seed": seed, "batch": given.batch,
                "proposals": given.proposals, "device": given.device,
            }  # fmt: skip
            while not run.done and time.monotonic() < deadline:
                line = json.dumps(what | run.step())
                with given.out.open("a") as file:
                    file.write(line + "\n")
                print(line, flush=True)
                run.save(rows)


if __name__ == "__main__":
    main()
