"""TensorBoard event files, through torch's writer."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.core.errors import MissingExtra
from holdfast.core.keyword_hints import suggest_keywords


@suggest_keywords
class TensorBoard:
    """Write scalars to ``folder``; ``options`` go to ``torch.utils.tensorboard.SummaryWriter``.

    Raises:
        MissingExtra: tensorboard is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str], **options: Any) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise MissingExtra(
                "tensorboard", next_step="install it with: pip install 'holdfast[tensorboard]'"
            ) from error
        self._open: Callable[[], Any] = lambda: SummaryWriter(os.fspath(folder), **options)
        self._writer: Any = None

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add the scalars and flush: a full disk is detected only by flushing."""
        if self._writer is None:
            self._writer = self._open()
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
