"""Tables as people have them: the kinds of their columns, and how these become inputs of a model.

`Learning.plan` learns a `Plan` from the rows of training; an `Encoder` applies it to any rows.
"""

from orthogp.tables.arrow import (
    Column,
    Matrix,
    array_table,
    as_numbers,
    as_table,
    as_texts,
    finite_numbers,
    is_table,
    kind_of,
    listed,
)
from orthogp.tables.encoding import ByName, Encoded, Encoder, OutOfFold, Tally, number_inputs
from orthogp.tables.learning import (
    Described,
    Learning,
    named_categories,
    number_plan,
    plain_plan,
    require_complete,
    with_frequent_values,
    with_transforms,
    without_gap_indicators,
)
from orthogp.tables.plan import POLICIES, Plan
from orthogp.tables.statistics import fold_numbers, plans_without_folds, sketched
from orthogp.tables.summary import ColumnRow, ColumnTable, plan_notes, transform_notes

__all__ = [
    "POLICIES", "ByName", "Column", "ColumnRow", "ColumnTable", "Described", "Encoded", "Encoder",
    "Learning", "Matrix", "OutOfFold", "Plan", "Tally", "array_table", "as_numbers", "as_table",
    "as_texts", "finite_numbers", "fold_numbers", "is_table", "kind_of", "listed",
    "named_categories", "number_inputs", "number_plan", "plain_plan", "plan_notes",
    "plans_without_folds", "require_complete", "sketched", "transform_notes",
    "with_frequent_values", "with_transforms", "without_gap_indicators",
]  # fmt: skip
