"""Every setting of the estimators is an option, and importing the options imports no torch."""

import inspect

import pytest
from typer.testing import CliRunner

from orthogp import OrthogonalGPRegressor
from orthogp.apps.tabular.commands import app
from orthogp.apps.tabular.options import HELP, LEFT_OUT, OWN_DEFAULTS, as_arguments, settings

OBJECTS = {"kernel", "inducing_points", "residual_points", "callbacks"}
SIGNATURE = inspect.signature(OrthogonalGPRegressor.__init__).parameters


def test_every_setting_but_objects_is_an_option_with_its_default():
    found = {setting.name: setting.default for setting in settings()}
    expected = {name: p.default for name, p in SIGNATURE.items() if name not in OBJECTS}
    for name in ("self", *LEFT_OUT):
        del expected[name]
    assert found == expected
    assert found.keys() == HELP.keys()


def test_help_shows_every_option_and_an_example():
    shown = CliRunner().invoke(app, ["fit", "--help"], env={"COLUMNS": "200"}).output
    for setting in settings():
        assert f"--{setting.name.replace('_', '-')}" in shown
    assert "orthogp fit houses.csv --target price" in shown
    assert "orthogp predict" in CliRunner().invoke(app, ["predict", "--help"]).output


def test_what_the_constructor_is_given_by_default():
    given = {s.name: OWN_DEFAULTS.get(s.name, s.default) for s in settings()}
    estimator = OrthogonalGPRegressor(**as_arguments(given))
    assert estimator.get_params() == OrthogonalGPRegressor(verbose=True).get_params()


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("kl_columns", "none", None),
        ("kl_columns", "64", 64),
        ("kl_columns", "auto", "auto"),
        ("likelihood", "student_t", "student_t"),
        ("checkpoint_dir", "12", "12"),
        ("n_inducing", 5, 5),
        ("coverage_guarantee", "none", False),
        ("coverage_guarantee", "cross", "cross"),
    ],
)
def test_words_become_values(name, text, value):
    assert as_arguments({name: text}) == {name: value}
