"""Expected outputs stored as files.

``HOLDFAST_UPDATE_SNAPSHOTS=1 pytest tests/unit/report`` rewrites them; review the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "snapshots"


def assert_same(name: str, shown: str) -> None:
    """Assert that ``shown`` equals the content of the file ``name``."""
    file = FOLDER / name
    if os.environ.get("HOLDFAST_UPDATE_SNAPSHOTS") == "1":
        file.write_text(shown, encoding="utf-8")
    assert shown == file.read_text(encoding="utf-8")
