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


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="no projection in r(x)",
        file="orthogp/posterior/projection.py",
        find="p.factor.omega, q.v - p.u, q.S,",
        replace="p.factor.omega, q.v, q.S,",
        tests=(
            "tests/posterior/test_bases.py::test_marginals_covariance_and_kl_match_the_reference",
            "tests/posterior/test_bases.py::test_kl_is_that_of_the_predicted_gaussian",
            "tests/posterior/test_optimum.py::test_every_decoupled_basis_is_stationary_at_the_closed_form",
            "tests/posterior/test_natural.py::test_eq_15_natural_step_is_fisher_preconditioned",
        ),
    ),
    Mutant(
        name="no projection in the predictor",
        file="orthogp/posterior/predictor.py",
        find="(q.v - p.u) @ factor.R",
        replace="q.v @ factor.R",
        tests=(
            "tests/posterior/test_bases.py::test_residual_vanishes_on_beta",
            "tests/whole/test_equations.py::test_eq_12_orthogonal",
            "tests/whole/test_equations.py::test_appendix_d_primal_construction",
        ),
    ),
    Mutant(
        name="posterior in place of prior blocks in the mean",
        file="orthogp/posterior/projection.py",
        find="p.factor.omega, q.v - p.u, q.S,",
        replace="p.factor.omega, q.v - p.u + (q.S @ p.u.unsqueeze(-1)).squeeze(-1), q.S,",
        tests=(
            "tests/posterior/test_bases.py::test_marginals_covariance_and_kl_match_the_reference",
            "tests/posterior/test_bases.py::test_kl_is_that_of_the_predicted_gaussian",
            "tests/posterior/test_optimum.py::test_every_decoupled_basis_is_stationary_at_the_closed_form",
        ),
    ),
    Mutant(
        name="posterior in place of prior blocks in the KL",
        file="orthogp/posterior/projection.py",
        find="parts = p.residual_energy +",
        replace=(
            "u = p.u.unsqueeze(-1)\n    parts = (u.mT @ q.S @ u).flatten() + p.residual_energy +"
        ),
        tests=(
            "tests/posterior/test_bases.py::test_kl_is_that_of_the_predicted_gaussian",
            "tests/posterior/test_bases.py::test_kl_with_jitter_is_that_of_a_prior_with_noise_on_beta",
            "tests/posterior/test_optimum.py::test_every_decoupled_basis_is_stationary_at_the_closed_form",
        ),
    ),
    Mutant(
        name="KL without the residual",
        file="orthogp/posterior/projection.py",
        find="parts = p.residual_energy +",
        replace="parts = 0.0 * p.residual_energy +",
        tests=(
            "tests/posterior/test_bases.py::test_kl_is_that_of_the_predicted_gaussian",
            "tests/model/test_bound.py::test_interpolating_the_targets_is_paid_for_in_the_kl",
        ),
    ),
    Mutant(
        name="natural step without its guard",
        file="orthogp/posterior/gaussian.py",
        find="        if guarded:\n",
        replace="        if False:\n",
        tests=(
            "tests/posterior/test_natural.py::test_the_guard_keeps_the_precision_positive_definite",
        ),
    ),
    Mutant(
        name="guard that only asks for a positive definite result",
        file="orthogp/posterior/natural.py",
        find="SMALLEST_SHARE = 0.1",
        replace="SMALLEST_SHARE = 0.0",
        tests=(
            "tests/posterior/test_natural.py::test_safe_step_size_keeps_a_share_of_the_precision",
        ),
    ),
    Mutant(
        name="raw columns sampled",
        file="orthogp/posterior/projection.py",
        find="return scale * sampled.sum(-1)",
        replace=(
            "raw = self.a_gamma[:, self.columns].double() * self.at_points[1].double()\n"
            "        return scale * raw.sum(-1) - self.u.square().sum(-1)"
        ),
        tests=(
            "tests/posterior/test_optimum.py::test_sampled_kl_varies_as_the_projected_terms_do",
        ),
    ),
    Mutant(
        name="sampled columns not scaled",
        file="orthogp/posterior/projection.py",
        find="return scale * sampled.sum(-1)",
        replace="return sampled.sum(-1)",
        tests=("tests/posterior/test_bases.py::test_sampled_kl_is_unbiased",),
    ),
    Mutant(
        name="float32 factorisation",
        file="orthogp/linalg.py",
        find="    K = K.double()\n",
        replace="",
        tests=("tests/test_linalg.py::test_float32_matrices_are_factorised_in_float64",),
    ),
    Mutant(
        name="Adam on a_γ without its scale",
        file="orthogp/posterior/residual.py",
        find='        scale = state["scale"]\n',
        replace='        scale = torch.ones_like(state["scale"])\n',
        tests=(
            "tests/posterior/test_residual.py::test_scaled_adam_is_adam_on_the_scaled_coefficients",
            "tests/posterior/test_residual.py::test_refreshing_the_scale_moves_nothing_by_itself",
        ),
    ),
    Mutant(
        name="unwhitened q left whitened",
        file="orthogp/posterior/gaussian.py",
        find="return lower_product(self.R, factor.L, lower=True)",
        replace="return lower_product(self.R, self.L, lower=True)",
        tests=(
            "tests/posterior/test_bases.py::test_what_is_held_fixed_stands_still_when_the_kernel_moves",
        ),
    ),
    Mutant(
        name="a gradient that forgets what stands still",
        file="orthogp/posterior/gaussian.py",
        find="omega.diagonal().add_(2.0 * grad_log_det.sum())",
        replace="pass",
        tests=(
            "tests/posterior/test_bases.py::test_gradients_of_the_bound_match_finite_differences",
        ),
    ),
    Mutant(
        name="S̃ that does not follow L in the marginals",
        file="orthogp/posterior/projection.py",
        find="product = product + (product + total(H)).mT",
        replace="pass",
        tests=(
            "tests/posterior/test_bases.py::test_gradients_of_the_bound_match_finite_differences",
        ),
    ),
    Mutant(
        name="half of the gradient of K_β",
        file="orthogp/kernel/radial/__init__.py",
        find="return 2.0 * grad_outputs[0]",
        replace="return grad_outputs[0]",
        tests=(
            "tests/posterior/test_bases.py::test_gradients_of_the_bound_match_finite_differences",
        ),
    ),
    Mutant(
        name="a KL judged by one step",
        file="orthogp/training/watch.py",
        find="KL_MEMORY = 32",
        replace="KL_MEMORY = 1",
        tests=("tests/training/test_recovery.py::test_a_negative_kl_is_a_fault_where_it_stays",),
    ),
    Mutant(
        name="a slope of the radial sum without its scale",
        file="orthogp/kernel/radial/tiled.py",
        find="self.factors = scalars(terms.scale * terms.rho)",
        replace="self.factors = scalars(terms.rho)",
        tests=("tests/kernel/test_covariance.py",),
    ),
    Mutant(
        name="rows drawn with replacement",
        file="orthogp/training/batches.py",
        find="torch.randperm(self.num_rows, generator=self.generator, device=device)",
        replace=(
            "torch.randint("
            "self.num_rows, (self.num_rows,), generator=self.generator, device=device)"
        ),
        tests=(
            "tests/training/test_batches.py::test_every_epoch_has_every_row_once_and_every_batch_one_size",
        ),
    ),
    Mutant(
        name="a resumed run that draws other rows",
        file="orthogp/training/run.py",
        find="        self.feed.restore(state.rows)\n",
        replace="",
        tests=("tests/training/test_resume.py::test_every_method_resumes_exactly",),
    ),
    Mutant(
        name="a step that does not notice its failures",
        file="orthogp/training/watch.py",
        find="self.failed[:-1].logical_or_(found & ~self.failed.any())",
        replace="pass",
        tests=("tests/training/test_recovery.py::test_the_first_thing_to_fail_is_the_cause",),
    ),
    Mutant(
        name="a file without its checksum",
        file="orthogp/execution/files.py",
        find='if hashlib.sha256(payload).hexdigest().encode() + b"\\n" != digest:',
        replace="if False:",
        tests=("tests/execution/test_files.py::test_no_flipped_bit_is_read",),
    ),
    Mutant(
        name="gaps become the median",
        file="orthogp/tables/plan.py",
        find="self.imputation.fill(numbers[:, chosen])",
        replace="numbers[:, chosen]",
        tests=(
            "tests/tables/test_imputation.py::test_truth_values_are_filled_between_0_and_1_and_columns_say_how",
            "tests/estimators/test_tables.py::test_gaps_that_other_numbers_tell_cost_less_than_with_the_median",
            "tests/estimators/test_tables.py::test_rare_gaps_of_a_streamed_table_are_filled_as_the_sample_says",
        ),
    ),
    Mutant(
        name="no covariance of the gaps in the Gaussian",
        file="orthogp/tables/imputation.py",
        find=" + unknown / len(z)",
        replace="",
        tests=(
            "tests/tables/test_imputation.py::test_the_gaussian_is_that_of_loops_over_the_rows",
        ),
    ),
    Mutant(
        name="indicators of gaps whatever the error",
        file="orthogp/estimators/input_transform.py",
        find="marked.gains(filled) and not grows",
        replace="marked.gains(filled)",
        tests=(
            "tests/estimators/test_input_transform.py::test_indicators_that_raise_the_density_and_the_error_are_not_taken",
        ),
    ),
)


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
            outcome = verdict(mutant)
        except MutantError as error:
            outcome = f"ERROR {error}"
        killed += outcome == "killed"
        print(f"{mutant.name:<{width}}  {outcome}", flush=True)
    print(f"{killed} of {len(chosen)} mutants killed")
    return 0 if killed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
