"""Hatch's hook: links in the package's metadata, to the repository that builds the release.

GitHub sets the variables in every workflow. Elsewhere, and in a fork that builds by hand, there are
no links rather than wrong ones.
"""

from __future__ import annotations

import os
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAGES = {
    "Source": "",
    "Documentation": "/tree/main/docs",
    "Issues": "/issues",
    "Changelog": "/blob/main/CHANGELOG.md",
    "Security": "/security/policy",
}


class ReleaseLinks(MetadataHookInterface):
    """Sets ``urls``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """See hatch."""
        repository = os.environ.get("GITHUB_REPOSITORY")
        server = os.environ.get("GITHUB_SERVER_URL", "https://github.com")
        pages = PAGES if repository else {}
        metadata["urls"] = {name: f"{server}/{repository}{path}" for name, path in pages.items()}
