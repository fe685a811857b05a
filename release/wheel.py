"""Build a wheel with compiled extensions: ``make wheel ARGS="2.6.0 2.9.1@3.12"``.

Compiles for this environment's torch, or for the versions in the arguments, in the environments of
``make versions``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.core.native_extension import source_hash
from release.environments import FOLDER, ROOT, ensure_environment, parse_version

SOURCES = (
    *ROOT.glob("src/holdfast/recorder/native/*"),
    *ROOT.glob("src/holdfast/training/native/*"),
)
#: Extensions that were compiled earlier from the same sources.
PREBUILT = FOLDER / f"prebuilt-{source_hash(SOURCES)}"


def compile_extensions(interpreter: str, folder: Path) -> None:
    """Compile for the torch of this interpreter. Raises CalledProcessError."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [interpreter, "-m", "release.prebuild", str(folder)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def build_wheel(prebuilt: Path, target: Path) -> Path:
    """Build the wheel with the extensions in ``prebuilt`` into the folder ``target``.

    Raises:
        subprocess.CalledProcessError: hatch failed.
    """
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    environment = os.environ | {"HOLDFAST_PREBUILT": str(prebuilt)}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    return max(target.glob("holdfast-*-manylinux*.whl"), key=lambda wheel: wheel.stat().st_mtime)


def main(arguments: Sequence[str]) -> int:
    """Build the wheel in ``dist`` and return the exit status."""
    interpreters = [str(ensure_environment(parse_version(text))) for text in arguments]
    for interpreter in interpreters or [sys.executable]:
        compile_extensions(interpreter, PREBUILT)
    print(build_wheel(PREBUILT, ROOT / "dist"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
