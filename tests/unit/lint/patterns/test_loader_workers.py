"""Streams that are divided among ranks, with several workers per loader."""

import pytest

from tests.unit.lint.programs import program_from_sources

STREAM = """\
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

class Lines(IterableDataset):
    def __init__(self, paths):
        self.paths = paths

    def __iter__(self):
        rank, world = dist.get_rank(), dist.get_world_size()
        {divide}
        for path in self.paths[rank::world]:
            yield from open(path)
"""
LOADER = """\
def loader(paths, args):
    data = Lines(paths)
    return DataLoader(data, batch_size=8, num_workers={workers})  # found
"""
BY_WORKER = """info = get_worker_info()
        rank, world = rank * info.num_workers + info.id, world * info.num_workers"""


def found_lines(divide="pass", workers="4", files=1):
    stream, loader = STREAM.format(divide=divide), LOADER.format(workers=workers)
    sources = {"main": ("main.py", stream + loader)}
    if files > 1:
        head = "from torch.utils.data import DataLoader\nfrom lines import Lines\n"
        sources = {"main": ("main.py", head + loader), "lines": ("lines.py", stream)}
    lines = sources["main"][1].splitlines()
    return [
        "# found" in lines[each.location.line - 1]
        for each in program_from_sources(sources).analyze()
        if each.kind == "habit-sampler"
    ]


@pytest.mark.parametrize("workers", ["4", "args.workers"])
@pytest.mark.parametrize("files", [1, 2])
def test_a_stream_that_each_worker_reads_is_found(workers, files):
    assert found_lines(workers=workers, files=files) == [True]


@pytest.mark.parametrize(("divide", "workers"), [(BY_WORKER, "4"), ("pass", "0")])
def test_a_stream_of_one_worker_is_fine(divide, workers):
    assert found_lines(divide, workers) == []
