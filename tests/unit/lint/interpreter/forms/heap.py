"""State in objects, module variables and context managers: each object has its own attributes."""

_HEAD = "import functools\nimport os\n\nimport torch\nimport torch.distributed as dist\n\n\n"


def _pair(text: str, bad: str, good: str) -> tuple[str, str]:
    """Return the program with the bad part and with the good part in place of its line LINE."""
    return _HEAD + _with_part(text, bad), _HEAD + _with_part(text, good)


def _with_part(text: str, part: str) -> str:
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
_NORM = """
class Norm(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(width))

    def forward(self, x):
        mean = x.mean(0)
        if self.training:
            dist.all_reduce(mean)
        return (x - mean) * self.scale


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = Norm(8)
        self.head = torch.nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.norm(x))

"""
_ONLY_ONE = """
_DEPTH = 0


class RankZeroBlock:
    def __enter__(self):
        global _DEPTH
        _DEPTH += 1
        return self

    def __exit__(self, *exc):
        global _DEPTH
        _DEPTH -= 1


def barrier():
    if _DEPTH > 0 or not dist.is_initialized():
        return
    dist.barrier()


def write(path, state):
    torch.save(state, path)
    barrier()

"""
_ASKS = "dist.barrier()  # found"

FORMS: dict[str, tuple[str, str]] = {
    "two objects of one class": _pair(
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
    "two objects in attributes": _pair(
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
    "an object passed to a function": _pair(
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
    "objects made by one function": _pair(
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
    "objects in a dict": _pair(
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
    "a flag that only one object has": _pair(
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
    "fields of a dataclass": _pair(
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
    "a copy of a dataclass": _pair(
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
    "a named tuple": _pair(
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
    "an unpacked named tuple": _pair(
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
    "a typed named tuple": _pair(
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
    "a namespace": _pair(
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
    "a namespace of a dict": _pair(
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
    "an attribute set by name": _pair(
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
    "attributes of a dict of values": _pair(
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
    "entries of a state dict": _pair(
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
    "training mode": _pair(
        _NORM
        + """
def evaluate(net, batch):
    LINE
    with torch.no_grad():
        return net(batch).argmax(-1)


net = Net()
for step in range(10):
    net(torch.ones(4, 8)).sum().backward()
    if dist.get_rank() == 0:
        evaluate(net, torch.ones(4, 8))  # found
    net.train()
""",
        "net.zero_grad()",
        "net.eval()",
    ),
    "training mode restored too early": _pair(
        _NORM
        + """
net = Net()
net.eval()
LINE
if dist.get_rank() == 0:
    print(net(torch.ones(4, 8)))  # found
""",
        "net(torch.ones(4, 8))\nnet.train()",
        "net(torch.ones(4, 8))",
    ),
    "training mode set by a method": _pair(
        _NORM
        + """
class Runner:
    def __init__(self):
        self.net = Net()

    def valid(self, batch):
        self.net.train(mode=False)
        if dist.get_rank() == 0:
            LINE
        self.net.train()

    def fit(self, batch):
        self.net.train()
        self.net(batch)


runner = Runner()
runner.fit(torch.ones(4, 8))
runner.valid(torch.ones(4, 8))
""",
        "self.fit(batch)  # found",
        "self.net(batch)",
    ),
    "a group made on first use": _pair(
        """
_GROUP = None


def get_group():
    global _GROUP
    if _GROUP is None:
        _GROUP = dist.new_group(backend="gloo")
    return _GROUP


def setup():
    LINE


def log(value):
    if dist.get_rank() == 0:
        print(get_group(), value)  # found


setup()
log(1)
""",
        "dist.barrier()",
        "get_group()",
    ),
    "a group made on first use in a list": _pair(
        """
_G = []


def get_group():
    if len(_G) == 0:
        _G.append(dist.new_group(backend="gloo"))
    return _G[0]


LINE
if dist.get_rank() == 0:
    print(get_group())  # found
""",
        "print(dist.get_world_size())",
        "get_group()",
    ),
    "a group made on first use in a dict": _pair(
        """
_GROUPS = {}


def group_of(name):
    if not _GROUPS:
        _GROUPS["cpu"] = dist.new_group(backend="gloo")
    return _GROUPS[name]


LINE
if dist.get_rank() == 0:
    print(group_of("cpu"))  # found
""",
        "print(dist.get_world_size())",
        'group_of("cpu")',
    ),
    "a group made on first use, looked up": _pair(
        """
_GROUPS = {}


def group_of(name):
    group = _GROUPS.get(name)
    if group is None:
        group = dist.new_group(backend=name)
        _GROUPS[name] = group
    return group


LINE
if dist.get_rank() == 0:
    print(group_of("gloo"))  # found
""",
        "print(dist.get_world_size())",
        'group_of("gloo")',
    ),
    "a cached group": _pair(
        """
@functools.lru_cache(maxsize=None)
def get_group():
    return dist.new_group(backend="gloo")


LINE
if dist.get_rank() == 0:
    print(get_group())  # found
""",
        "print(dist.get_world_size())",
        "get_group()",
    ),
    "a group made on first use in an attribute": _pair(
        """
class Comm:
    def __init__(self):
        self._group = None

    @property
    def group(self):
        if not self._group:
            self._group = dist.new_group(backend="gloo")
        return self._group


comm = Comm()
LINE
if dist.get_rank() == 0:
    print(comm.group)  # found
""",
        "print(dist.get_world_size())",
        "print(comm.group)",
    ),
    "a counter of nested blocks": _pair(
        _ONLY_ONE
        + """
def save(path, state):
    LINE
        if dist.get_rank() == 0:
            write(path, state)  # found
    barrier()


save("model.pt", {})
""",
        "with torch.no_grad():",
        "with RankZeroBlock():",
    ),
    "a counter left too early": _pair(
        _ONLY_ONE
        + """
def save(path, state):
    with RankZeroBlock():
        torch.cuda.synchronize()
    LINE


save("model.pt", {})
""",
        "if dist.get_rank() == 0:\n    write(path, state)  # found",
        "write(path, state)",
    ),
    "a counter of nested blocks in a decorator": _pair(
        _ONLY_ONE
        + """
def main_only(function):
    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        result = None
        LINE
            if dist.get_rank() == 0:
                result = function(*args, **kwargs)  # found
        barrier()
        return result

    return wrapped


@main_only
def save(path, state):
    write(path, state)  # found


save("model.pt", {})
""",
        "with torch.no_grad():",
        "with RankZeroBlock():",
    ),
    "a flag that a context manager sets": _pair(
        """
import contextlib


class Comm:
    silent = False

    @contextlib.contextmanager
    def quiet(self):
        self.silent = True
        try:
            yield
        finally:
            self.silent = False

    def barrier(self):
        if not self.silent:
            dist.barrier()


comm = Comm()
comm.barrier()
LINE
    if dist.get_rank() == 0:
        comm.barrier()  # found
comm.barrier()
""",
        "with torch.no_grad():",
        "with comm.quiet():",
    ),
    "a module variable set at start": _pair(
        """
_ACTIVE = False


def init():
    global _ACTIVE
    _ACTIVE = True


def sync(value):
    if _ACTIVE:
        dist.all_reduce(value)
    return value


LINE
if dist.get_rank() == 0:
    sync(torch.ones(1))  # found
""",
        "init()",
        "print(dist.get_world_size())",
    ),
    "a module variable that holds the answer": _pair(
        """
_CHIEF = None
_SIZE = None


def init():
    global _CHIEF, _SIZE
    _CHIEF = dist.get_rank() == 0
    _SIZE = dist.get_world_size()


def sync(value):
    LINE
        dist.all_reduce(value)  # found


init()
sync(torch.ones(1))
""",
        "if _CHIEF:",
        "if _SIZE is not None:",
    ),
    "an attribute set anew": _pair(
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
    "an environment variable that is set": _pair(
        """
def step():
    LINE
        dist.barrier()  # found


step()
""",
        'if os.environ.get("RANK", "0") == "0":',
        'if "RANK" in os.environ and os.environ.get("LOCAL_RANK") is not None:',
    ),
    "a variable that is set, in a function": _pair(
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
    "a layer with a group of its own": _pair(
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
    "a base class with a flag": _pair(
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
    "a builder": _pair(
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
    "one shared object": _pair(
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
