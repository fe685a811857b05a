"""Run the command ``holdfast`` with ``python -m holdfast``."""

from __future__ import annotations

from holdfast.cli import main

if __name__ == "__main__":
    main()
