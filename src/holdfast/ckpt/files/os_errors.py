"""Text of operating-system errors for messages about checkpoint files."""

from __future__ import annotations


def os_error_reason(error: OSError) -> str:
    """Return the reason in lower case: ``no such file or directory``."""
    return (error.strerror or str(error)).lower()
