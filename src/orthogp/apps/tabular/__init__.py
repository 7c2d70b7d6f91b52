"""Tables in, models and predictions out: what `orthogp fit` and `orthogp predict` do."""
