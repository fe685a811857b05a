"""Benchmarks: each module measures one claim against a named peer, interleaved in one run.

``python -m benchmarks`` (``make bench``) runs all of them on an otherwise idle machine;
``docs/benchmarks.md`` lists every figure. A module has ``main() -> None``, and the first line of
its docstring names what it measures.
"""
