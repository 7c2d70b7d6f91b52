"""Machinery that knows no mathematics: CUDA streams, process groups, whole files."""
