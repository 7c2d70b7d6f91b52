"""The program: what it offers, that help is quick, and how it refuses."""

import subprocess
import sys

from typer.testing import CliRunner

import orthogp
from orthogp.apps.cli import app


def run(*arguments):
    command = [sys.executable, "-m", "orthogp", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_help_names_the_commands():
    offered = CliRunner().invoke(app, ["--help"]).output
    assert all(name in offered for name in ("fit", "predict", "demo", "paper", "bench"))
    shown = CliRunner().invoke(app, ["bench", "--help"]).output
    assert all(name in shown for name in ("speed", "predict", "scaling", "imports"))


def test_the_version_is_that_of_the_package():
    assert CliRunner().invoke(app, ["--version"]).output == f"orthogp {orthogp.__version__}\n"


def test_a_refusal_is_one_sentence():
    done = run("bench", "speed", "--peers", "gpytorch,other")
    assert done.returncode == 2
    assert done.stderr == "orthogp: 'other' is no peer; expected some of gpytorch, gpjax, gpflow\n"


def test_a_list_that_is_none_is_refused():
    done = run("bench", "scaling", "--residuals", "7,x")
    assert done.returncode == 2
    assert "'7,x' is not a list of whole numbers" in done.stderr


def test_demo_runs_the_demonstration(tmp_path):
    """Which refuses a file for a folder before it does anything else."""
    (tmp_path / "taken").write_text("")
    done = run("demo", "--quick", "--out", str(tmp_path / "taken"))
    assert done.returncode == 2
    assert (
        done.stderr == f"orthogp: {tmp_path / 'taken'} is not a folder; name another with --out\n"
    )


def test_debug_shows_where_a_refusal_came_from():
    done = run("--debug", "bench", "scaling", "--residuals", "7,x")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "'7,x' is not a list of whole numbers" in done.stderr
