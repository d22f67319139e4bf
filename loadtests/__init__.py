"""Measuring, for ourselves and beside others.

The engine alone: `offline`, `compare`, `prefix`. The server over HTTP: `run`, `http_overhead`, `idle_streams`.
"""
