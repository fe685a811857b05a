"""Partitions of data by rank, padding and keys in the shapes that programs give them."""

_HEAD = """\
import os, math, functools, itertools, collections, copy
import torch
import torch.distributed as dist
import torch.nn as nn
"""


def _pair(text: str, bad: str, good: str) -> tuple[str, str]:
    """Return the program with the bad part and with the good part in place of PART."""
    return _HEAD + text.replace("PART", bad), _HEAD + text.replace("PART", good)


FORMS: dict[str, tuple[str, str]] = {
    "two datasets, one shared out": _pair(
        """
from torch.utils.data import DataLoader
class Ds(torch.utils.data.Dataset):
    def __init__(self, items, shard=True):
        self.items = items[dist.get_rank()::dist.get_world_size()] if shard else items
    def __len__(self):
        return len(self.items)
    def __getitem__(self, i):
        return self.items[i]
own = DataLoader(Ds(torch.ones(9)))
full = DataLoader(Ds(torch.ones(9), shard=False))
PART
    dist.all_reduce(x)
""",
        "for x in own:  # found",
        "for x in full:",
    ),
    "bounds from a function": _pair(
        """
def bounds(n, rank, world):
    per = PART
    lo = rank * per
    return lo, lo + per
def run(files):
    lo, hi = bounds(len(files), dist.get_rank(), dist.get_world_size())
    for f in files[lo:hi]:  # found
        dist.all_reduce(torch.load(f))
run(os.listdir("x"))
""",
        "int(math.ceil(n / world))",
        "n // world",
    ),
    "the first ranks have one more": _pair(
        """
def run(items, world, rank):
    q, r = divmod(len(items), world)
    PART
    for it in items[lo:hi]:  # found
        dist.all_reduce(it)
run(torch.ones(10, 2), dist.get_world_size(), dist.get_rank())
""",
        "lo = rank * q + min(rank, r)\n    hi = (rank + 1) * q + min(rank + 1, r)",
        "lo = rank * q\n    hi = (rank + 1) * q",
    ),
    "the last rank has the rest": _pair(
        """
def run(items):
    rank, world = dist.get_rank(), dist.get_world_size()
    per = len(items) // world
    start = rank * per
    end = start + per
    PART
    for i in range(start, end):  # found
        dist.all_reduce(items[i])
run(torch.ones(10, 2))
""",
        "if rank == world - 1:\n        end = len(items)",
        "if per == 0:\n        end = start",
    ),
    "keys that are labels": _pair(
        """
def run(batch_labels, num_classes):
    sums = collections.defaultdict(float)
    PART
    for k in sums:  # found
        t = torch.tensor(sums[k]); dist.all_reduce(t)
for lab in torch.utils.data.DataLoader(torch.ones(5), sampler=torch.utils.data.DistributedSampler(torch.ones(5))):
    run(lab, 4)
""",
        "for l in batch_labels.tolist():\n        sums[l] += 1",
        "for l in range(num_classes):\n        sums[l] += 1",
    ),
    "a key set on both sides": _pair(
        """
def run(x):
    out = {}
    if dist.get_rank() == 0:
        out["loss"] = x
    else:
        PART
    for k in out:  # found
        dist.all_reduce(out[k])
run(torch.ones(1))
""",
        "pass",
        'out["loss"] = torch.zeros(1)',
    ),
    "an element added on both sides": _pair(
        """
def run(x):
    out = []
    if dist.get_rank() == 0:
        out.append(x)
    else:
        PART
    for k in out:  # found
        dist.all_reduce(k)
run(torch.ones(1))
""",
        "print(x)",
        "out.append(torch.zeros(1))",
    ),
    "padding a batch": _pair(
        """
import torch.nn.functional as F
def gather_ids(ids):
    ids = ids[ids != 0]
    n = torch.tensor([ids.shape[0]], device=ids.device)
    ns = [torch.zeros_like(n) for _ in range(dist.get_world_size())]
    dist.all_gather(ns, n)
    m = int(torch.stack(ns).max())
    PART
    out = [torch.empty_like(ids) for _ in ns]
    dist.all_gather(out, ids)  # found
    return out
for b in torch.utils.data.DataLoader(torch.ones(5), sampler=torch.utils.data.DistributedSampler(torch.ones(5))):
    gather_ids(b)
""",
        "print(m)",
        "ids = F.pad(ids, (0, m - ids.shape[0]))",
    ),
    "padding in a new tensor": _pair(
        """
def gather_ids(ids):
    ids = ids[ids != 0]
    m = torch.tensor(len(ids))
    dist.all_reduce(m, op=dist.ReduceOp.MAX)
    PART
    out = [torch.empty_like(buf) for _ in range(dist.get_world_size())]
    dist.all_gather(out, buf)  # found
    return out
for b in torch.utils.data.DataLoader(torch.ones(5), sampler=torch.utils.data.DistributedSampler(torch.ones(5))):
    gather_ids(b)
""",
        "buf = ids.contiguous()",
        "buf = ids.new_full((int(m),), -1)\n    buf[:len(ids)] = ids",
    ),
    "a number of own files": _pair(
        """
def run(files):
    mine = [f for i, f in enumerate(files) if i % dist.get_world_size() == dist.get_rank()]
    PART
    for s in range(n):  # found
        dist.all_reduce(torch.ones(1))
run(os.listdir("x"))
""",
        "n = len(mine)",
        "n = len(files)",
    ),
    "files without the rest": _pair(
        """
def run(files):
    w = dist.get_world_size()
    PART
    for s in files[dist.get_rank()::w]:  # found
        dist.all_reduce(torch.ones(1))
run(list(range(100)))
""",
        "files = sorted(files)",
        "files = files[: len(files) - len(files) % w]",
    ),
    "files extended": _pair(
        """
def run(files):
    w = dist.get_world_size()
    PART
    for s in files[dist.get_rank()::w]:  # found
        dist.all_reduce(torch.ones(1))
run(list(range(100)))
""",
        "print(w)",
        "files.extend(files[: w - len(files) % w])",
    ),
    "buckets of a sampler": _pair(
        """
class Buckets(torch.utils.data.Sampler):
    def __init__(self, lengths, size, rank, world):
        self.lengths, self.size, self.rank, self.world = lengths, size, rank, world
    def __iter__(self):
        order = sorted(range(len(self.lengths)), key=self.lengths.__getitem__)
        batches = [order[i:i + self.size] for i in range(0, len(order), self.size)]
        PART
        yield from batches[self.rank::self.world]
s = Buckets([1, 2, 3], 2, dist.get_rank(), dist.get_world_size())
for b in s:  # found
    dist.all_reduce(torch.ones(1))
""",
        "pass",
        "batches = batches[: len(batches) // self.world * self.world]",
    ),
    "repeated files": _pair(
        """
def parts(xs, rank, world):
    n = math.ceil(len(xs) / world) * world
    PART
    return xs[rank::world]
for x in parts(list(range(11)), dist.get_rank(), dist.get_world_size()):  # found
    dist.all_reduce(torch.ones(1))
""",
        "print(n)",
        "xs = (xs * 2)[:n]",
    ),
    "a split tensor": _pair(
        """
def go(x, rank, world):
    PART
    for row in mine:  # found
        dist.all_reduce(row)
go(torch.ones(11, 3), dist.get_rank(), dist.get_world_size())
""",
        "mine = torch.tensor_split(x, world)[rank]",
        "mine = x[: len(x) // world * world].view(world, -1, 3)[rank]",
    ),
    "the least number of steps": _pair(
        """
def loop(loader):
    n = torch.tensor(len(loader))
    PART
    it = iter(loader)
    for _ in range(int(n)):  # found
        next(it)
        dist.all_reduce(torch.ones(1))
ids = list(range(17))[dist.get_rank()::dist.get_world_size()]
loop(torch.utils.data.DataLoader(ids, batch_size=2))
""",
        "pass",
        "dist.all_reduce(n, op=dist.ReduceOp.MIN)",
    ),
    "a loader of a share": _pair(
        """
ids = list(range(17))
w, r = dist.get_world_size(), dist.get_rank()
PART
for b in torch.utils.data.DataLoader(ids, batch_size=2, drop_last=True):  # found
    dist.all_reduce(b)
""",
        "ids = ids[r::w]",
        "ids = ids[r * (len(ids) // w):(r + 1) * (len(ids) // w)]",
    ),
    "merged metrics": _pair(
        """
def logs(train, rank):
    m = {"loss": train}
    extra = {}
    PART
    m.update(extra)
    for k, v in m.items():  # found
        dist.all_reduce(v)
logs(torch.ones(1), dist.get_rank())
""",
        'if rank == 0:\n        extra["lr"] = torch.ones(1)',
        'extra["lr"] = torch.ones(1) * rank',
    ),
    "chosen numbers": _pair(
        """
ids = [i for i in range(100) PART]
for i in ids:  # found
    dist.all_reduce(torch.ones(1))
""",
        "if i % dist.get_world_size() == dist.get_rank()",
        "if i % dist.get_world_size() == 0",
    ),
}
