"""The paper's experiments: data sets, methods, runner, tables, figures, report."""
