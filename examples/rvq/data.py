"""The UCI hand-written digits, cut into sequences of rows, and several input pipelines.

With every pipeline (loader workers, all data on the device, a prefetching thread), the batches and
their order are the same: they depend only on seed and step. This makes a resumed run equal to an
uninterrupted one.
"""

from __future__ import annotations

import importlib.util
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from holdfast.training.loop.loader_settings import LoaderSettings

ROWS = 8  # rows of an image
COLUMNS = 8  # columns of an image: one step of a sequence
LENGTHS = (4, 6, 8)  # rows of a sequence in multi-length training
HELD_OUT = 297  # of 1,797 images; the other 1,500 are for training


def load_digits() -> tuple[Tensor, Tensor]:
    """Return the training and held-out images, (n, 8, 8), values from 0 to 1.

    Reads the file of ``sklearn.datasets.load_digits`` without importing scikit-learn, which would
    cost every rank a second per start.
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise SystemExit(
            "the digits come with scikit-learn, which is not installed: pip install scikit-learn"
        )
    table = np.loadtxt(
        Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=","
    )
    images = torch.tensor(table[:, :-1] / 16.0, dtype=torch.float32).view(-1, ROWS, COLUMNS)
    images = images[torch.randperm(len(images), generator=torch.Generator().manual_seed(0))]
    return images[HELD_OUT:], images[:HELD_OUT]


class Digits(Dataset[Tensor]):
    """Images in host or device memory; a whole batch is selected at once."""

    def __init__(self, images: Tensor) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        return self.images[index]

    def __getitems__(self, indices: list[int]) -> Tensor:
        """Return the images of a batch, (batch, 8, 8)."""
        return self.images[torch.tensor(indices, device=self.images.device)]


def unchanged(batch: Tensor) -> Tensor:
    """Return the batch, which :class:`Digits` has put together."""
    return batch


class DigitsLoader(DataLoader[Tensor]):
    """This rank's batches of an epoch on its device, loaded as the settings say."""

    def __init__(
        self, images: Tensor, settings: LoaderSettings, batch_size: int, device: torch.device
    ) -> None:
        self.device, self.depth = device, settings.prefetch
        super().__init__(
            Digits(images.to(device) if settings.cache else images),
            batch_size=batch_size,
            sampler=DistributedSampler(images, drop_last=True),
            drop_last=True,
            collate_fn=unchanged,
            pin_memory=device.type == "cuda" and not settings.cache,
            **settings.loader_options(),
        )

    def __iter__(self) -> Iterator[Tensor]:
        batches = super().__iter__()  # in this thread: it draws the workers' seed
        if self.depth:
            return prefetched(batches, self.device, self.depth)
        return (batch.to(self.device, non_blocking=True) for batch in batches)


def cut(batch: Tensor, step: int) -> Tensor:
    """Keep some consecutive rows, which depend only on the step and agree on all ranks."""
    draw = torch.Generator().manual_seed(step)
    length = LENGTHS[int(torch.randint(len(LENGTHS), (), generator=draw))]
    first = int(torch.randint(ROWS - length + 1, (), generator=draw))
    return batch[:, first : first + length]


def prefetched(batches: Iterator[Tensor], device: torch.device, depth: int) -> Iterator[Tensor]:
    """Prepare up to ``depth`` batches in a thread; closing the iterator ends the thread."""
    ready: queue.Queue[Tensor | BaseException | None] = queue.Queue(depth)
    closed = threading.Event()
    thread = threading.Thread(target=_fill, args=(batches, ready, closed, device), name="prefetch")
    thread.start()
    try:
        while (batch := ready.get()) is not None:
            if isinstance(batch, BaseException):
                raise batch
            if device.type == "cuda":
                # The memory was allocated on the thread's stream and is now used on this one.
                batch.record_stream(torch.cuda.current_stream())
            yield batch
    finally:
        closed.set()
        thread.join()


def _fill(
    batches: Iterator[Tensor],
    ready: queue.Queue[Tensor | BaseException | None],
    closed: threading.Event,
    device: torch.device,
) -> None:
    stream = torch.cuda.Stream() if device.type == "cuda" else None
    try:
        with torch.cuda.stream(stream):  # a stream of None changes nothing
            for batch in batches:
                moved = batch.to(device, non_blocking=True)
                if stream is not None:
                    stream.synchronize()
                if not _put(ready, moved, closed):
                    return
    except BaseException as error:  # noqa: BLE001  # raised again in the consumer
        _put(ready, error, closed)
    else:
        _put(ready, None, closed)


def _put(
    ready: queue.Queue[Tensor | BaseException | None],
    item: Tensor | BaseException | None,
    closed: threading.Event,
) -> bool:
    """Return whether the item was delivered before the reader closed, or the script ended."""
    while not closed.is_set() and threading.main_thread().is_alive():
        try:
            ready.put(item, timeout=0.1)
        except queue.Full:
            continue
        return True
    return False
