"""Covariance blocks: `covariance` is the only caller of a kernel, `radial` what it is fast by."""
