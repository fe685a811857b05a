"""Lists whose order is each rank's own: samplers, shares, numbers of names, hashes of text."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = """\
import glob
import os
import random
import zlib
from pathlib import Path
import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Dataset, DistributedSampler

"""
DATA = """\
class Images(Dataset):
    def __init__(self, root):
        self.paths = {paths}

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, at):
        return self.paths[at]

def main():
    dist.init_process_group("gloo")
    data = Images("images")
    return DistributedSampler(data, shuffle=False)  # found

main()
"""
LABELS = """\
class Labels:
    def __init__(self, root):
        names = {names}
        self.number = {{name: at for at, name in enumerate(names)}}  # found

def main():
    dist.init_process_group("gloo")
    return Labels("images").number

main()
"""
SHARE = """\
class Sampler:
    def __init__(self, data, rank, world):
        self.data, self.rank, self.world = data, rank, world
        self.generator = {generator}

    def __iter__(self):
        order = {order}
        return iter(order[self.rank :: self.world])  # found

def main(data):
    dist.init_process_group("gloo")
    return list(Sampler(data, dist.get_rank(), dist.get_world_size()))

main([1])
"""
HASH = """\
def mine(name):
    return {number} % dist.get_world_size() == dist.get_rank()  # found

def main(names):
    dist.init_process_group("gloo")
    return [name for name in names if mine(name)]

main(["a"])
"""
PERMUTED = "self.generator.permutation(len(self.data)).tolist()"
FOUND = [
    DATA.format(paths='glob.glob(f"{root}/*.png")'),
    DATA.format(paths="list(Path(root).rglob('*.png'))"),
    DATA.format(paths="[os.path.join(root, name) for name in os.listdir(root)]"),
    LABELS.format(names="os.listdir(root)"),
    LABELS.format(names="[path.name for path in Path(root).iterdir()]"),
    LABELS.format(names="set(open(root).read().split())"),
    SHARE.format(generator="np.random.default_rng()", order=PERMUTED),
    HASH.format(number="hash(name)"),
    HASH.format(number="hash(str(name))"),
]
FINE = [
    DATA.format(paths='sorted(glob.glob(f"{root}/*.png"))'),
    DATA.format(paths="sorted(Path(root).rglob('*.png'))"),
    DATA.format(paths='glob.glob(f"{root}/*.png")\n        self.paths = sorted(self.paths)'),
    LABELS.format(names="sorted(os.listdir(root))"),
    LABELS.format(names="sorted(set(open(root).read().split()))"),
    LABELS.format(names="set(range(8))").replace("name", "n"),
    SHARE.format(generator="np.random.default_rng(7)", order=PERMUTED),
    HASH.format(number="zlib.crc32(name.encode())"),
    HASH.format(number="hash(len(name))"),
    DATA.format(paths='sorted(glob.glob(f"{root}/*.png"))').replace(
        "return len(self.paths)", "self.sizes = {n: 1 for n in os.listdir('x')}\n        return 1"
    ),
]


def found_lines(body):
    text = f"{HEAD}{body}"
    program = program_from_sources({"main": ("main.py", text)})
    lines = text.splitlines()
    return [
        "# found" in lines[each.location.line - 1]
        for each in program.analyze()
        if each.kind == "habit-order"
    ]


@pytest.mark.parametrize("body", FOUND)
def test_an_order_of_each_rank_is_found(body):
    assert found_lines(body) == [True]


@pytest.mark.parametrize("body", FINE)
def test_one_order_is_fine(body):
    assert found_lines(body) == []


def test_a_data_set_of_another_file_is_found():
    listing = DATA.format(paths='glob.glob(f"{root}/*.png")')
    data, _, main = listing.partition("def main")
    program = program_from_sources(
        {
            "images": ("images.py", f"import glob\nfrom torch.utils.data import Dataset\n{data}"),
            "main": ("main.py", f"{HEAD}from images import Images\ndef main{main}"),
        }
    )
    assert [each.kind for each in program.analyze() if "deals out" in each.detail] == [
        "habit-order"
    ]


def test_a_data_set_that_may_be_another_is_fine():
    listing = DATA.format(paths='glob.glob(f"{root}/*.png")')
    data, _, main = listing.partition("def main")
    other = data.replace("class Images", "class Rows").replace("glob.glob", "sorted")
    choice = main.replace('Images("images")', 'Rows("x") if len(os.environ) else Images("x")')
    assert found_lines(f"{data}{other}def main{choice}") == []


def test_positions_in_a_list_of_the_process_are_fine():
    body = LABELS.format(names="os.listdir(root)").replace("names", "self.names")
    assert found_lines(f"{body}\ndef at(self, i):\n    return self.names[i]\n") == []


def test_a_numbering_that_is_written_for_a_later_run_is_fine():
    body = LABELS.format(names="os.listdir(root)").replace(
        "# found", "\n        torch.save(self.number, 'numbers.pt')"
    )
    assert found_lines(body) == []


def test_a_fixed_hash_seed_is_fine():
    body = "os.environ['PYTHONHASHSEED'] = '0'\n" + HASH.format(number="hash(name)")
    assert found_lines(body) == []
