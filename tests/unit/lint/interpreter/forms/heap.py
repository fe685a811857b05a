"""State in objects, module variables and context managers: each object has its own attributes."""

_HEAD = "import functools\nimport os\n\nimport torch\nimport torch.distributed as dist\n\n\n"


def pair(text: str, bad: str, good: str) -> tuple[str, str]:
    """Return the program with the bad part and with the good part in place of its line LINE."""
    return _HEAD + with_part(text, bad), _HEAD + with_part(text, good)


def with_part(text: str, part: str) -> str:
    """Return the program with a part in place of its line LINE."""
    lines = []
    for line in text.strip("\n").split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        parts = part.strip("\n").split("\n") if line.strip() == "LINE" else None
        lines += [line] if parts is None else [f"{indent}{each}".rstrip() for each in parts]
    return "\n".join(lines) + "\n"


_METER = """
class Meter:
    def __init__(self, sync=True, every=1):
        self.sync = sync
        self.every = every
        self.total = 0.0

    def update(self, value):
        if self.sync:
            value = value.clone()
            dist.all_reduce(value)
        self.total += value.item()

"""
FORMS: dict[str, tuple[str, str]] = {
    "two objects of one class": pair(
        _METER
        + """
def run(values):
    total, local = Meter(sync=True), Meter(sync=False)
    for value in values:
        total.update(value)
        if dist.get_rank() == 0:
            LINE


run(torch.ones(3, 1))
""",
        "total.update(value)  # found",
        "local.update(value)",
    ),
    "two objects in attributes": pair(
        _METER
        + """
class Trainer:
    def __init__(self):
        self.loss = Meter()
        self.speed = Meter(sync=False)

    def step(self, value):
        self.loss.update(value)
        if dist.get_rank() == 0:
            LINE


Trainer().step(torch.ones(1))
""",
        "self.loss.update(value)  # found",
        "self.speed.update(value)",
    ),
    "an object passed to a function": pair(
        _METER
        + """
def track(meter, values):
    for value in values:
        meter.update(value)


def run(values):
    everywhere, here = Meter(), Meter(sync=False)
    track(everywhere, values)
    if dist.get_rank() == 0:
        LINE


run(torch.ones(3, 1))
""",
        "track(everywhere, values)  # found",
        "track(here, values)",
    ),
    "objects made by one function": pair(
        _METER
        + """
def make(sync):
    return Meter(sync=sync)


def run(values):
    everywhere, here = make(True), make(False)
    everywhere.update(values)
    if dist.get_rank() == 0:
        LINE


run(torch.ones(1))
""",
        "everywhere.update(values)  # found",
        "here.update(values)",
    ),
    "objects in a dict": pair(
        _METER
        + """
METERS = {"loss": Meter(), "speed": Meter(sync=False)}


def run(value):
    METERS["loss"].update(value)
    if dist.get_rank() == 0:
        LINE


run(torch.ones(1))
""",
        'METERS["loss"].update(value)  # found',
        'METERS["speed"].update(value)',
    ),
    "a flag that only one object has": pair(
        """
class Log:
    def __init__(self, enabled):
        self.enabled = enabled

    def flush(self):
        if self.enabled:
            torch.cuda.synchronize()
            dist.barrier()  # found


console = Log(enabled=dist.get_rank() == 0)
shared = Log(enabled=True)
LINE
""",
        "console.flush()",
        "shared.flush()",
    ),
    "fields of a dataclass": pair(
        """
import dataclasses


@dataclasses.dataclass
class Options:
    verbose: bool = False
    every: int = 10


mine = Options(verbose=dist.get_rank() == 0)
base = Options(verbose=True, every=5)


def report(options, step):
    if options.verbose and step % options.every == 0:
        dist.barrier()  # found


report(base, 1)
LINE
""",
        "report(mine, 1)",
        "report(Options(), 2)",
    ),
    "a copy of a dataclass": pair(
        """
import dataclasses


@dataclasses.dataclass
class Options:
    chief: bool
    every: int = 10


options = dataclasses.replace(Options(False), chief=dist.get_rank() == 0)
LINE
    dist.barrier()  # found
""",
        "if options.chief:",
        "if options.every > 5:",
    ),
    "a named tuple": pair(
        """
import collections

Context = collections.namedtuple("Context", "rank world")


def context():
    return Context(dist.get_rank(), dist.get_world_size())


def step():
    ctx = context()
    LINE
        dist.barrier()  # found


step()
""",
        "if ctx.rank == 0:",
        "if ctx.world > 4:",
    ),
    "an unpacked named tuple": pair(
        """
from collections import namedtuple

Context = namedtuple("Context", ["rank", "world"])
number, size = Context(rank=dist.get_rank(), world=dist.get_world_size())
LINE
    dist.barrier()  # found
""",
        "if number == 0:",
        "if size > 4:",
    ),
    "a typed named tuple": pair(
        """
from typing import NamedTuple


class Context(NamedTuple):
    number: int
    size: int = 1


ctx = Context(dist.get_rank(), dist.get_world_size())
LINE
    dist.barrier()  # found
""",
        "if ctx.number == 0:",
        "if ctx.size > 4:",
    ),
    "a namespace": pair(
        """
from types import SimpleNamespace

cfg = SimpleNamespace(first=dist.get_rank() == 0, every=10)


def step(number):
    LINE
        dist.barrier()  # found


step(3)
""",
        "if cfg.first:",
        "if number % cfg.every == 0:",
    ),
    "a namespace of a dict": pair(
        """
import argparse

values = {"chief": dist.get_rank() == 0, "steps": 5}
opts = argparse.Namespace(**values)
for step in range(opts.steps):
    LINE
        dist.barrier()  # found
""",
        "if opts.chief:",
        "if opts.steps > 3:",
    ),
    "an attribute set by name": pair(
        """
class State:
    def __init__(self):
        setattr(self, "chief", dist.get_rank() == 0)
        setattr(self, "every", 4)


state = State()
LINE
    dist.barrier()  # found
""",
        "if state.chief:",
        "if state.every > 2:",
    ),
    "attributes of a dict of values": pair(
        """
class State:
    def __init__(self, **values):
        self.__dict__.update(values)


state = State(chief=dist.get_rank() == 0, every=4)
LINE
    dist.barrier()  # found
""",
        "if state.chief:",
        "if state.every > 2:",
    ),
    "entries of a state dict": pair(
        """
state = {"chief": dist.get_rank() == 0, "step": 0}


def step():
    LINE
        dist.barrier()  # found


step()
""",
        'if state["chief"]:',
        'if state["step"] % 10 == 0:',
    ),
    "an attribute set anew": pair(
        """
class Writer:
    def __init__(self):
        self.enabled = False

    def flush(self):
        if self.enabled:
            dist.barrier()  # found


writer = Writer()
writer.enabled = dist.get_rank() == 0
print(writer.enabled)
LINE
writer.flush()
""",
        "pass",
        "writer.enabled = True",
    ),
    "an environment variable that is set": pair(
        """
def step():
    LINE
        dist.barrier()  # found


step()
""",
        'if os.environ.get("RANK", "0") == "0":',
        'if "RANK" in os.environ and os.environ.get("LOCAL_RANK") is not None:',
    ),
    "a variable that is set, in a function": pair(
        """
def launched():
    return "LOCAL_RANK" in os.environ or os.environ.get("SLURM_PROCID") is not None


def first():
    return int(os.environ.get("LOCAL_RANK", -1)) in (-1, 0)


LINE
    dist.barrier()  # found
""",
        "if first():",
        "if launched():",
    ),
    "a layer with a group of its own": pair(
        """
class Pool(torch.nn.Module):
    def __init__(self, group=None, gather=True):
        super().__init__()
        self.group, self.gather = group, gather

    def forward(self, x):
        if self.gather:
            dist.all_reduce(x, group=self.group)
        return x


shared, alone = Pool(), Pool(gather=False)
shared(torch.ones(1))
if dist.get_rank() == 0:
    LINE
""",
        "shared(torch.ones(1))  # found",
        "alone(torch.ones(1))",
    ),
    "a base class with a flag": pair(
        """
class Hook:
    def __init__(self, everywhere=False):
        self.everywhere = everywhere

    def fire(self, value):
        if self.everywhere:
            dist.all_reduce(value)


class Print(Hook):
    def __init__(self):
        super().__init__(everywhere=False)


class Average(Hook):
    def __init__(self):
        super().__init__(everywhere=True)


Average().fire(torch.ones(1))
if dist.get_rank() == 0:
    LINE
""",
        "Average().fire(torch.ones(1))  # found",
        "Print().fire(torch.ones(1))",
    ),
    "a builder": pair(
        """
class Saver:
    def __init__(self):
        self.collective = False

    def sharded(self):
        self.collective = True
        return self

    def save(self, value):
        if self.collective:
            dist.all_gather_object([None] * dist.get_world_size(), value)


saver = Saver()
LINE
if dist.get_rank() == 0:
    saver.save(1)  # found
Saver().sharded().save(2)
""",
        "saver.sharded()",
        "print(saver)",
    ),
    "one shared object": pair(
        """
class Context:
    _instance = None

    def __init__(self):
        self.chief = dist.get_rank() == 0
        self.world = dist.get_world_size()

    @classmethod
    def get(cls):
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance


LINE
    dist.barrier()  # found
""",
        "if Context.get().chief:",
        "if Context.get().world > 1:",
    ),
}
