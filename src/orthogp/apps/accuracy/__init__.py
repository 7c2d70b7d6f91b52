"""Accuracy beside other models: `models` fits them, `predictive` and `metrics` measure what they
predict, `job` is one fit, `standings` and `pictures` show the records, `commands` is the command
line."""
