"""Use other sources of the compiled recorder: ``other_sources.py FOLDER`` and the arguments of holdfast."""

import sys
from pathlib import Path

from holdfast.cli import main
from holdfast.recorder import build, self_test


def build_where_gloo_fails(sources: Path) -> tuple[Path | None, list[str]]:
    """Return the library, if collectives work with it, and the log."""
    build.SOURCES = sources
    self_test._ENVIRONMENT["GLOO_SOCKET_IFNAME"] = "no-such-interface"
    log: list[str] = []
    return build.ensure_built(log.append), log


if __name__ == "__main__":
    build.SOURCES = Path(sys.argv.pop(1))
    sys.argv[0] = "holdfast"
    main()
