"""Hatch's hook: a wheel with the compiled extensions of the folder $HOLDFAST_PREBUILT.

Without the variable the wheel contains sources only and is valid everywhere (``py3-none-any``).
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PrebuiltExtensions(BuildHookInterface[Any]):
    """Adds the extensions and sets the wheel's tag."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See hatch."""
        folder = os.environ.get("HOLDFAST_PREBUILT")
        if not folder or version == "editable":
            return
        libraries = sorted(Path(folder).glob("*.so"))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag(libraries)}"
        build_data["force_include"] |= {
            str(library): f"holdfast/recorder/prebuilt/{library.name}" for library in libraries
        }


def platform_tag(libraries: list[Path]) -> str:
    """Return the tag for the newest glibc whose symbols the libraries need."""
    needed = (2, 17)
    for library in libraries:
        symbols = subprocess.run(
            ["objdump", "-T", str(library)], capture_output=True, text=True, check=True
        ).stdout
        found = re.findall(r"\(?GLIBC_(\d+)\.(\d+)", symbols)
        needed = max([needed, *((int(major), int(minor)) for major, minor in found)])
    return f"manylinux_{needed[0]}_{needed[1]}_{platform.machine()}"
