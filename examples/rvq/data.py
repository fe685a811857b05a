"""The UCI hand-written digits, cut into sequences of rows, and several input pipelines.

With every pipeline (loader workers, all data on the device, a prefetching thread), the batches and
their order are the same: they depend only on seed and step. This makes a resumed run equal to an
uninterrupted one.
"""

from __future__ import annotations

import importlib.util
import itertools
import queue
import threading
from collections.abc import Generator, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

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


class ResumableSampler(DistributedSampler[int]):
    """A DistributedSampler that can start in mid-epoch: at ``start``, in this rank's samples."""

    start = 0

    def __iter__(self) -> Iterator[int]:
        return itertools.islice(super().__iter__(), self.start, None)


class Batches:
    """An infinite stream of this rank's batches, (batch, rows, 8), that can start at any step."""

    def __init__(
        self,
        images: Tensor,
        sampler: ResumableSampler,
        *,
        batch_size: int,
        num_workers: int,
        device: torch.device,
        gpu_cache: bool,
        multi_length: bool,
    ) -> None:
        self._images = images.to(device) if gpu_cache else images
        self._sampler = sampler
        self._batch_size = batch_size
        self._device = device
        self._gpu_cache = gpu_cache
        self._multi_length = multi_length
        self._loader = None if gpu_cache else self._make_loader(num_workers)
        self.steps_in_epoch = sampler.num_samples // batch_size
        if not self.steps_in_epoch:
            raise SystemExit(
                f"--batch-size {batch_size} is more than the {sampler.num_samples} images of "
                "one rank"
            )

    def _make_loader(self, num_workers: int) -> DataLoader[Tensor]:
        return DataLoader(
            self._images,  # type: ignore[arg-type]  # has the methods of a Dataset
            batch_size=self._batch_size,
            sampler=self._sampler,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            pin_memory=self._device.type == "cuda",
            drop_last=True,
        )

    def starting_at(self, step: int) -> Generator[Tensor]:
        """Yield the batches of the given step and all later ones."""
        for epoch in itertools.count(step // self.steps_in_epoch):
            done = max(0, step - epoch * self.steps_in_epoch)
            self._sampler.set_epoch(epoch)
            self._sampler.start = done * self._batch_size
            for number, batch in enumerate(
                self._one_epoch(), start=epoch * self.steps_in_epoch + done
            ):
                yield self._cut(batch.to(self._device, non_blocking=True), number)

    def _one_epoch(self) -> Iterator[Tensor]:
        if self._loader is not None:
            yield from self._loader
            return
        order = torch.tensor(list(self._sampler), device=self._device)
        for first in range(0, len(order) - self._batch_size + 1, self._batch_size):
            yield self._images[order[first : first + self._batch_size]]

    def _cut(self, batch: Tensor, step: int) -> Tensor:
        """Keep some consecutive rows, which depend only on the step and agree on all ranks."""
        if not self._multi_length:
            return batch
        draw = torch.Generator().manual_seed(step)
        length = LENGTHS[int(torch.randint(len(LENGTHS), (), generator=draw))]
        first = int(torch.randint(ROWS - length + 1, (), generator=draw))
        return batch[:, first : first + length]


def prefetched(
    batches: Iterator[Tensor], device: torch.device, depth: int = 2
) -> Generator[Tensor]:
    """Prefetch up to ``depth`` batches in a thread; closing the iterator ends the thread."""
    ready: queue.Queue[Tensor | BaseException] = queue.Queue(depth)
    closed = threading.Event()
    thread = threading.Thread(
        target=_fill, args=(batches, ready, closed, device), name="prefetch", daemon=True
    )
    thread.start()
    try:
        while True:
            batch = ready.get()
            if isinstance(batch, BaseException):
                raise batch
            if (
                device.type == "cuda"
            ):  # the memory was taken on the thread's stream and is now used on this one
                batch.record_stream(torch.cuda.current_stream())
            yield batch
    finally:
        closed.set()
        thread.join()


def _fill(
    batches: Iterator[Tensor],
    ready: queue.Queue[Tensor | BaseException],
    closed: threading.Event,
    device: torch.device,
) -> None:
    stream = torch.cuda.Stream() if device.type == "cuda" else None
    try:
        with torch.cuda.stream(stream):  # a stream of None changes nothing
            for batch in batches:
                if stream is not None:
                    stream.synchronize()
                if not _put(ready, batch, closed):
                    return
    except BaseException as error:  # noqa: BLE001  # raised again in the consumer
        _put(ready, error, closed)


def _put(ready: queue.Queue, item: Tensor | BaseException, closed: threading.Event) -> bool:
    """Return whether the item was delivered before the reader closed."""
    while not closed.is_set():
        try:
            ready.put(item, timeout=0.1)
        except queue.Full:
            continue
        return True
    return False
