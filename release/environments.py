"""Virtual environments with other versions of torch and Python, kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: About 6 GB per version of torch that PyPI distributes with CUDA only.
FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast-versions"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
#: What the tests of ``release/versions.py`` import. Tests of storage services are skipped.
TEST_PACKAGES = (
    *("accelerate", "lightning", "torchmetrics"),
    *("hypothesis", "pytest", "pytest-timeout", "pytest-xdist"),
)


@dataclass(frozen=True, order=True)
class Version:
    """A release of torch and a minor version of Python."""

    torch: str
    python: str

    @property
    def sort_key(self) -> tuple[int, ...]:
        """Return the numbers of both versions."""
        return tuple(int(number) for number in re.findall(r"\d+", f"{self.torch} {self.python}"))


def parse_version(text: str) -> Version:
    """Parse ``2.6.0`` (this Python) or ``2.6.0@3.12``."""
    torch, _, python = text.partition("@")
    return Version(torch, python or "{}.{}".format(*sys.version_info[:2]))


def ensure_environment(version: Version) -> Path:
    """Return the interpreter of the environment of ``version``, which is created if needed.

    Raises:
        subprocess.CalledProcessError: pip failed.
        FileNotFoundError: there is no such Python on PATH.
    """
    folder = FOLDER / f"torch-{version.torch}-python-{version.python}"
    interpreter, stamp = folder / "bin/python", folder / "installed"
    project = hashlib.sha256(ROOT.joinpath("pyproject.toml").read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text(encoding="utf-8") == project:
        return interpreter
    if not interpreter.exists():
        _run(_find_python(version.python), "-m", "venv", str(folder))
    torch = f"torch=={version.torch}"
    pip = (str(interpreter), "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    if not Path("/proc/driver/nvidia/version").exists():  # a tenth of the size, where reachable
        subprocess.run(
            [*pip, "--no-deps", "--retries", "0", torch, "--index-url", CPU_INDEX],
            stderr=subprocess.DEVNULL,
            check=False,
        )
    _run(*pip, "--no-cache-dir", torch)
    # 4.57 resumes no training without torch 2.6.
    transformers = "transformers" if version.sort_key >= (2, 6) else "transformers<4.51"
    _run(*pip, torch, transformers, *TEST_PACKAGES, "-e", str(ROOT))
    stamp.write_text(project, encoding="utf-8")
    return interpreter


def _find_python(version: str) -> str:
    if version == "{}.{}".format(*sys.version_info[:2]):
        return sys.executable
    path = shutil.which(f"python{version}")
    if path is None:
        raise FileNotFoundError(f"there is no python{version} on PATH")
    return path


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
