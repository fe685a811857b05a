"""Guards or collectives behind a table, a decorator, a callback or a passed function."""

_HEAD = "import functools\n\nimport torch\nimport torch.distributed as dist\n\n\n"


def _twin(bad: str, innocent: str, text: str) -> tuple[str, str]:
    """Return the program with the bad line and with the correct one."""
    return _HEAD + text.replace("LINE", bad), _HEAD + text.replace("LINE", innocent)


_REDUCES = "dist.all_reduce(value)  # found"
_PRINTS = "print(value)"

FORMS: dict[str, tuple[str, str]] = {
    "a method by its name": _twin(
        _REDUCES,
        _PRINTS,
        """\
class Callback:
    def fire(self, event, value):
        getattr(self, event)(value)

    def on_end(self, value):
        pass


class Quiet(Callback):
    def fire(self, event, value):
        if dist.get_rank() != 0:
            return
        super().fire(event, value)


class Meter(Quiet):
    def on_end(self, value):
        LINE


class Engine:
    def __init__(self, callbacks):
        self.callbacks = callbacks

    def emit(self, event, value):
        for callback in self.callbacks:
            callback.fire(event, value)


Engine([Meter()]).emit("on_end", torch.ones(1))
""",
    ),
    "a method by the value of an enumeration": _twin(
        _REDUCES,
        _PRINTS,
        """\
import enum


class Event(enum.Enum):
    START = "on_start"
    END = "on_end"


class Meter:
    def fire(self, event, value):
        if dist.get_rank() == 0:
            getattr(self, event.value)(value)

    def on_start(self, value):
        pass

    def on_end(self, value):
        LINE


def train(meter):
    meter.fire(Event.START, torch.ones(1))
    meter.fire(Event.END, torch.ones(1))


train(Meter())
""",
    ),
    "a helper that calls its argument": _twin(
        "self.report",
        "self.show",
        """\
def on_main(function, *args, **kwargs):
    if dist.get_rank() == 0:
        return function(*args, **kwargs)  # found


class Trainer:
    def report(self, value):
        dist.all_reduce(value)  # found

    def show(self, value):
        print(value)

    def run(self, value):
        on_main(LINE, value)  # found


Trainer().run(torch.ones(1))
""",
    ),
    "a collective passed to a helper": _twin(
        "dist.all_reduce",
        "print",
        """\
def on_main(function, *args):
    if dist.get_rank() == 0:
        function(*args)  # found


on_main(LINE, torch.ones(1))  # found
""",
    ),
    "a guard of Accelerate around a bound method": _twin(
        "self.accelerator.gather(value)",
        "value",
        """\
from accelerate import Accelerator


class Trainer:
    def __init__(self):
        self.accelerator = Accelerator()

    def report(self, value):
        print(LINE)  # found

    def run(self, value):
        publish = self.accelerator.on_main_process(self.report)
        publish(value)  # found


Trainer().run(torch.ones(1))
""",
    ),
    "a guard of Lightning around a function": _twin(
        _REDUCES,
        _PRINTS,
        """\
from lightning.pytorch.utilities import rank_zero_only


def report(value):
    LINE


rank_zero_only(report)(torch.ones(1))  # found
""",
    ),
    "a table of partials": _twin(
        "True",
        "False",
        """\
def _run(value, *, train):
    if train:
        dist.all_reduce(value)


PHASES = {"train": functools.partial(_run, train=True), "valid": functools.partial(_run, train=LINE)}


def epoch(value):
    PHASES["train"](value)
    if dist.get_rank() == 0:
        PHASES["valid"](value)  # found


epoch(torch.ones(1))
""",
    ),
    "a list of partials": _twin(
        _REDUCES,
        _PRINTS,
        """\
def console(value, folder):
    print(folder)


def mean(value, folder):
    LINE


class Trainer:
    def __init__(self, folder):
        self.reporters = [functools.partial(each, folder=folder) for each in (console, mean)]

    def report(self, value):
        for reporter in self.reporters:
            reporter(value)

    def run(self, value):
        if dist.get_rank() == 0:
            self.report(value)  # found


Trainer("here").run(torch.ones(1))
""",
    ),
    "a table of methods": _twin(
        "self.mean",
        "self.show",
        """\
class Trainer:
    def __init__(self):
        self.handlers = {"mean": LINE, "show": self.show}

    def mean(self, value):
        dist.all_reduce(value)

    def show(self, value):
        print(value)

    def run(self, value):
        if dist.get_rank() == 0:
            self.handlers["mean"](value)  # found


Trainer().run(torch.ones(1))
""",
    ),
    "a decorator that returns early": _twin(
        _REDUCES,
        _PRINTS,
        """\
def main_only(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        if dist.get_rank() != 0:
            return None
        return function(*args, **kwargs)

    return wrapper


class Trainer:
    @main_only
    def report(self, value):
        LINE

    def run(self, value):
        self.report(value)


Trainer().run(torch.ones(1))
""",
    ),
    "a decorator that selects at definition": _twin(
        _REDUCES,
        _PRINTS,
        """\
def main_only(function):
    return function if dist.get_rank() == 0 else (lambda *args, **kwargs: None)


@main_only
def report(value):
    LINE


report(torch.ones(1))  # found
""",
    ),
    "a decorator with a rank argument": _twin(
        _REDUCES,
        _PRINTS,
        """\
def on_rank(rank):
    def decorator(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            if dist.get_rank() == rank:
                return function(*args, **kwargs)

        return wrapper

    return decorator


@on_rank(0)
def report(value):
    LINE


report(torch.ones(1))
""",
    ),
    "a decorated hook without callers": _twin(
        _REDUCES,
        _PRINTS,
        """\
from lightning.pytorch import Callback
from lightning.pytorch.utilities import rank_zero_only


class Report(Callback):
    @rank_zero_only  # found
    def on_train_end(self, trainer, module):
        value = torch.ones(1)
        LINE
""",
    ),
    "a hook registered on one rank": _twin(
        "if dist.get_rank() == 0:",
        "if True:",
        """\
class Mean:
    def after(self, value):
        dist.all_reduce(value)  # found


class Show:
    def after(self, value):
        print(value)


class Runner:
    def __init__(self):
        self.hooks = []
        self.register(Show())
        LINE  # found
            self.register(Mean())

    def register(self, hook):
        self.hooks.append(hook)

    def run(self, value):
        for hook in self.hooks:  # found
            hook.after(value)  # found


Runner().run(torch.ones(1))
""",
    ),
    "one rank's hook among others": _twin(
        "Mean",
        "Show",
        """\
class Mean:
    def after(self, value):
        dist.all_reduce(value)


class Show:
    def after(self, value):
        print(value)


class Runner:
    def __init__(self):
        self.hooks = []
        self.register(Show())
        if dist.get_rank() == 0:
            self.register(LINE())

    def register(self, hook):
        self.hooks.append(hook)

    def run(self, value):
        for hook in self.hooks:
            hook.after(value)  # found


Runner().run(torch.ones(1))
""",
    ),
    "a hook of each kind of rank": _twin(
        _PRINTS,
        "dist.all_reduce(value)",
        """\
class Mean:
    def after(self, value):
        dist.all_reduce(value)


class Show:
    def after(self, value):
        LINE


def main(value):
    hooks = []
    if dist.get_rank() == 0:
        hooks.append(Show())
    else:
        hooks.append(Mean())
    for hook in hooks:
        hook.after(value)  # found


main(torch.ones(1))
""",
    ),
    "a hook that a registry builds": _twin(
        "if dist.get_rank() == 0:",
        "if True:",
        """\
class Registry(dict):
    def register(self, cls):
        self[cls.__name__] = cls
        return cls

    def build(self, config):
        config = dict(config)
        return self[config.pop("type")](**config)


HOOKS = Registry()


@HOOKS.register
class Mean:
    def after(self, value):
        dist.all_reduce(value)  # found


@HOOKS.register
class Show:
    def after(self, value):
        print(value)


CONFIG = dict(show=dict(type="Show"), mean=dict(type="Mean"))


class Runner:
    def __init__(self, config):
        self.hooks = []
        LINE
            self.register(config["mean"])
        if dist.get_rank() == 0:
            self.register(config["show"])

    def register(self, config):
        self.hooks.append(HOOKS.build(config))

    def call(self, event, *args):
        for hook in self.hooks:
            getattr(hook, event)(*args)

    def run(self, value):
        self.call("after", value)


Runner(CONFIG).run(torch.ones(1))
""",
    ),
    "a property of a hook's argument": _twin(
        "module.scores",
        "module.name",
        """\
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.utilities import rank_zero_only
from torchmetrics.classification import MulticlassAccuracy


class Tagger(LightningModule):
    def __init__(self):
        super().__init__()
        self.accuracy = MulticlassAccuracy(4)
        self.name = "tagger"

    @property
    def scores(self):
        return self.accuracy.compute()


class Report(Callback):
    def on_validation_epoch_end(self, trainer, module):
        self._append(module)  # found

    @rank_zero_only
    def _append(self, module):
        print(LINE)  # found
""",
    ),
    "an annotated parameter": _twin(
        "scores.mean()",
        "scores.name",
        """\
class Scores:
    name = "scores"

    def mean(self):
        value = torch.ones(1)
        dist.all_reduce(value)
        return value


def report(scores: Scores):
    if dist.get_rank() == 0:
        print(LINE)  # found
""",
    ),
    "a context manager that yields a rank test": _twin(
        _REDUCES,
        _PRINTS,
        """\
class Turn:
    def __enter__(self):
        return dist.get_rank() == 0

    def __exit__(self, *_):
        pass


def report(value):
    with Turn() as writes:
        if writes:
            LINE


report(torch.ones(1))
""",
    ),
    "classes registered by a decorator": _twin(
        _REDUCES,
        _PRINTS,
        """\
HOOKS = {}


def register(cls):
    HOOKS[cls.__name__] = cls
    return cls


@register
class Mean:
    def after(self, value):
        LINE


class Runner:
    def __init__(self, names):
        self.hooks = [HOOKS[name]() for name in names]

    def call(self, event, value):
        for hook in self.hooks:
            getattr(hook, event)(value)

    def run(self, value):
        if dist.get_rank() == 0:
            self.call("after", value)  # found


Runner(["Mean"]).run(torch.ones(1))
""",
    ),
}
