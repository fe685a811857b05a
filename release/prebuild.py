"""Compile and test the extensions for the wheel: ``python -m release.prebuild FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast.recorder import build
from holdfast.training import packing_extension


def main(folder: Path) -> int:
    """Compile into ``folder`` what is not there yet; return the exit status."""
    failures: list[str] = []
    for extension in (build.recorder_extension(), packing_extension.packing()):
        target = folder / extension.prebuilt.name
        if target.exists():
            continue
        print("compiling", target.name, flush=True)
        if extension.compile_to(target, failures.append) is not None:
            failure = extension.self_test(target)
            if failure is not None:
                target.unlink()
                failures.append(f"{target.name} fails its self-test: {failure}")
    print(*failures, sep="\n", end="", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
