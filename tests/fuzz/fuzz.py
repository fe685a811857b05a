"""Run one target under atheris: ``python tests/fuzz/fuzz.py TARGET FOLDER [libFuzzer options …]``.

Inputs that reach new code are stored in FOLDER, failing inputs in its parent folder. ``make fuzz``
runs all targets for a limited time.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

ROOT = Path(__file__).parents[2]


def main(name: str, folder: Path, options: list[str]) -> None:
    """Fuzz until a limit of libFuzzer is reached or an input fails."""
    sys.path.insert(0, str(ROOT))
    with atheris.instrument_imports(include=["holdfast"]):
        from tests.fuzz.targets import TARGETS  # imported here to be instrumented
    target, seeds = TARGETS[name]
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds):
        (folder / f"seed-{number}").write_bytes(seed)
    atheris.Setup(
        [sys.argv[0], str(folder), f"-artifact_prefix={folder.parent}/failed-{name}-", *options],
        target,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
