"""What is known of objects and module variables at one point: modes, counters, lazily made groups."""

from tests.unit.lint.interpreter.forms.heap import pair

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
FORMS: dict[str, tuple[str, str]] = {
    "training mode": pair(
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
    "training mode restored too early": pair(
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
    "training mode set by a method": pair(
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
    "a group made on first use": pair(
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
    "a group made on first use in a list": pair(
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
    "a group made on first use in a dict": pair(
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
    "a group made on first use, looked up": pair(
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
    "a cached group": pair(
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
    "a group made on first use in an attribute": pair(
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
    "a counter of nested blocks": pair(
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
    "a counter left too early": pair(
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
    "a counter of nested blocks in a decorator": pair(
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
    "a flag that a context manager sets": pair(
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
    "a module variable set at start": pair(
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
    "a module variable that holds the answer": pair(
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
    "groups made once": pair(
        """
_MODEL_GROUP = None


def make_groups(size):
    global _MODEL_GROUP
    LINE
    for start in range(0, dist.get_world_size(), size):
        members = list(range(start, start + size))
        group = dist.new_group(members)
        if dist.get_rank() in members:
            _MODEL_GROUP = group


make_groups(2)
make_groups(2)
""",
        "if dist.get_rank() == 0:\n    return  # found",
        "if _MODEL_GROUP is not None:\n    return",
    ),
    "groups made once by name": pair(
        """
_GROUPS = {}


def make_groups(name, size):
    LINE
    for start in range(0, dist.get_world_size(), size):
        members = list(range(start, start + size))
        group = dist.new_group(members)
        if dist.get_rank() in members:
            _GROUPS[name] = group


make_groups("experts", 2)
""",
        "if name in _GROUPS or dist.get_rank() == 0:\n    return  # found",
        "if name in _GROUPS:\n    print(name)\n    return",
    ),
}
