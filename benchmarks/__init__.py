"""Each module here measures one claim next to a named peer, interleaved in one run, and prints a ratio.

``python -m benchmarks`` (``make bench``) runs them all, alone on the machine; ``docs/benchmarks.md`` derives every
number. A module has ``main() -> None`` and a first line that says what it measures.
"""
