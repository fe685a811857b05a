"""State of objects and modules in the shapes that libraries give it."""

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
    "a copied model in evaluation mode": _pair(
        """
class BN(nn.Module):
    def forward(self, x):
        if self.training:
            dist.all_reduce(x)
        return x
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn = BN()
    def forward(self, x):
        return self.bn(x)
net = Net()
ema = copy.deepcopy(net)
PART
if dist.get_rank() == 0:
    ema(torch.ones(3))  # found
""",
        "ema.requires_grad_(False)",
        "ema.eval()",
    ),
    "a mode set by name": _pair(
        """
class BN(nn.Module):
    def __init__(self, stats=None):
        super().__init__()
        self.stats = stats
    def forward(self, x):
        if not self.training:
            return x
        dist.all_reduce(x)
        return x
class Trainer:
    def __init__(self, model):
        self.model = model
    def set_mode(self, mode):
        if mode == "train":
            self.model.train()
        else:
            self.model.eval()
    def log_images(self, x):
        PART
        if dist.get_rank() == 0:
            self.model(x)  # found
t = Trainer(BN())
t.log_images(torch.ones(2))
""",
        'self.set_mode("train")',
        'self.set_mode("test")',
    ),
    "an object with a reduction": _pair(
        """
class Acc:
    def __init__(self, reduce_fn=None):
        self.reduce_fn = reduce_fn
        self.items = []
    def add(self, x):
        self.items.append(x)
    def result(self):
        out = torch.stack(self.items)
        if self.reduce_fn is not None:
            self.reduce_fn(out)
        return out
def reduce(x):
    dist.all_reduce(x)
a = Acc(reduce)
b = Acc()
for s in range(3):
    a.add(torch.ones(1)); b.add(torch.ones(1))
    if s == 2:
        a.result()
if dist.get_rank() == 0:
    PART
""",
        "print(a.result())  # found",
        "print(b.result())",
    ),
    "attributes of parsed arguments": _pair(
        """
import argparse
def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--n", type=int)
    return p.parse_args()
def main():
    args = parse()
    args.rank = dist.get_rank()
    args.world = dist.get_world_size()
    args.chief = args.rank == 0
    run(args)
def run(args):
    PART
        dist.barrier()  # found
main()
""",
        "if args.chief:",
        "if args.world > 2:",
    ),
    "a field with a factory": _pair(
        """
from dataclasses import dataclass, field
@dataclass
class State:
    rank: int = field(default_factory=dist.get_rank)
    step: int = 0
    epoch: int = 0
st = State()
def tick(st):
    PART
        dist.barrier()  # found
tick(st)
""",
        "if st.rank == 0:",
        "if st.step > 5:",
    ),
    "a module variable that one rank sets": _pair(
        """
_LOGGER = None
def setup():
    global _LOGGER
    if PART
        _LOGGER = object()
def log(x):
    if _LOGGER is not None:
        dist.all_reduce(x)  # found
setup()
log(torch.ones(1))
""",
        "dist.get_rank() == 0:",
        'os.environ.get("DEBUG"):',
    ),
    "a counter of a class": _pair(
        """
class Sync:
    _depth = 0
    @classmethod
    def enter(cls):
        cls._depth += 1
    @classmethod
    def leave(cls):
        cls._depth -= 1
    @classmethod
    def barrier(cls):
        if cls._depth == 0:
            dist.barrier()
def save():
    PART
    if dist.get_rank() == 0:
        Sync.barrier()  # found
    Sync.leave()
Sync.enter(); Sync.leave()
save()
""",
        "print(1)",
        "Sync.enter()",
    ),
    "a flag of a module": _pair(
        """
import contextlib
_SKIP = False
@contextlib.contextmanager
def skip_sync():
    global _SKIP
    old = _SKIP
    _SKIP = True
    try:
        yield
    finally:
        _SKIP = old
def sync(x):
    if _SKIP:
        return x
    dist.all_reduce(x)
    return x
def main(x):
    with PART:
        if dist.get_rank() == 0:
            sync(x)  # found
    sync(x)
main(torch.ones(1))
""",
        "torch.no_grad()",
        "skip_sync()",
    ),
    "a registry of groups": _pair(
        """
class Groups:
    def __init__(self):
        self._groups = {}
    def get(self, name):
        if name not in self._groups:
            self._groups[name] = dist.new_group(backend=name)
        return self._groups[name]
groups = Groups()
PART
if dist.get_rank() == 0:
    g = groups.get("gloo")  # found
""",
        "print(2)",
        'groups.get("gloo")',
    ),
    "a group made after an early return": _pair(
        """
class Comm:
    def __init__(self):
        self.pg = None
    def ensure(self):
        if self.pg is not None:
            return self.pg
        self.pg = dist.new_group()
        return self.pg
c = Comm()
PART
if dist.get_rank() == 0:
    c.ensure()  # found
""",
        "print(1)",
        "c.ensure()",
    ),
    "one of several layers": _pair(
        """
class Block(nn.Module):
    def __init__(self, i, sync=False):
        super().__init__()
        self.i, self.sync = i, sync
    def forward(self, x):
        if self.sync:
            dist.all_reduce(x)
        return x
class Net(nn.Module):
    def __init__(self, n, sync_last):
        super().__init__()
        self.blocks = nn.ModuleList([Block(i) for i in range(n)])
        self.last = Block(n, sync=sync_last)
    def forward(self, x):
        for b in self.blocks:
            x = b(x)
        return self.last(x)
net = Net(3, PART)
net(torch.ones(1))
if dist.get_rank() == 0:
    net(torch.ones(1))  # found
""",
        "True",
        "False",
    ),
    "a flag that is agreed later": _pair(
        """
class Stopper:
    def __init__(self):
        self.stop = False
    def check(self, loss):
        if loss > 3:
            self.stop = True
        PART
        return self.stop
s = Stopper()
for x in range(10):
    loss = float(torch.isnan(torch.load("x")).any())
    if s.check(loss):
        break  # found
    dist.all_reduce(torch.ones(1))
""",
        "pass",
        "flag = torch.tensor(float(self.stop))\n        dist.all_reduce(flag)\n        self.stop = bool(flag)",
    ),
    "a flag that a callback sets": _pair(
        """
class Trainer:
    def __init__(self, cbs):
        self.should_stop = False
        self.cbs = cbs
    def fit(self):
        self.should_stop = False
        for step in range(10):
            for cb in self.cbs:
                cb.on_step(self, step)
            if self.should_stop:
                break  # found
            dist.all_reduce(torch.ones(1))
class Stop:
    def on_step(self, trainer, step):
        PART
            trainer.should_stop = True
Trainer([Stop()]).fit()
""",
        "if dist.get_rank() == 0 and step > 3:",
        "if step > 3:",
    ),
    "a property of two objects": _pair(
        """
class Env:
    def __init__(self, rank, world):
        self.rank, self.world = rank, world
    @property
    def main(self):
        return self.rank == 0
    @property
    def multi(self):
        return self.world > 1
env = Env(dist.get_rank(), dist.get_world_size())
solo = Env(0, 1)
if PART:
    dist.barrier()  # found
""",
        "env.main",
        "solo.main",
    ),
    "a rank that is an argument": _pair(
        """
class Logger:
    def __init__(self, rank=None):
        self.rank = dist.get_rank() if rank is None else rank
    def sync(self):
        if self.rank == 0:
            dist.barrier()  # found
PART
l.sync()
""",
        "l = Logger()",
        "l = Logger(rank=0)",
    ),
    "a rank kept in a module variable": _pair(
        """
_RANK = -1
_WORLD = -1
def init():
    global _RANK, _WORLD
    _RANK = dist.get_rank()
    _WORLD = dist.get_world_size()
def main_only():
    return PART
init()
if main_only():
    dist.barrier()  # found
""",
        "_RANK == 0",
        "_WORLD == 1",
    ),
    "an object with a group": _pair(
        """
class Par:
    def __init__(self, ranks=None):
        self.group = dist.new_group(ranks) if ranks else None
    def reduce(self, x):
        dist.all_reduce(x, group=self.group)
world = Par()
first = Par([0])
if dist.get_rank() == 0:
    PART
""",
        "world.reduce(torch.ones(1))  # found",
        "first.reduce(torch.ones(1))",
    ),
    "a mode for one block": _pair(
        """
import contextlib
class N(nn.Module):
    def forward(self, x):
        if self.training:
            dist.all_reduce(x)
        return x
@contextlib.contextmanager
def evaluating(m):
    was = m.training
    try:
        m.eval()
        yield m
    finally:
        m.train(was)
n = N()
with PART:
    if dist.get_rank() == 0:
        n(torch.ones(1))  # found
n(torch.ones(1))
""",
        "torch.no_grad()",
        "evaluating(n)",
    ),
}
