"""Code from public projects that looks rank-dependent and is uniform, and varying versions."""

import pytest

from holdfast.lint.options import LintOptions
from holdfast.lint.run import lint_paths
from tests.unit.lint.interpreter.test_varying_values import HEAD, lines

SAME = {
    "what the first rank has packed and sent": """
        def share(done, ids):
            if dist.get_rank() == 0:
                packed = torch.tensor([1 if done else 0, ids.numel()])
                dist.broadcast(packed, src=0)
            else:
                packed = torch.tensor([0, 0])
                dist.broadcast(packed, src=0)
                done, count = packed.tolist()
                done = done != 0
                ids = torch.empty((count // 2, 2))
            return done, ids

        def step(model):
            if dist.get_rank() == 0:
                done, ids = model.transform()
            else:
                done, ids = True, None
            done, ids = share(done, ids)
            if not done:
                dist.barrier()
        """,
    "a progress bar on one rank, by a function": """
        from tqdm import tqdm

        def watched(loader):
            if dist.get_rank() == 0:
                return tqdm(loader)
            return loader

        def train(batches):
            loader = elsewhere.loader(batches)
            for batch in watched(loader):
                dist.barrier()
        """,
    "an enumerate index over rank-local data": """
        def train(limit):
            for number, batch in enumerate(elsewhere.loader(dist.get_rank())):
                if number >= limit:
                    break
                dist.barrier()
        """,
    "finiteness of the gradient norm": """
        def step(optimizer, grad_norm):
            if torch.isfinite(grad_norm):
                dist.barrier()
        """,
    "a file name's suffix": """
        def fetch(name):
            path = elsewhere.link if dist.get_rank() == 0 else elsewhere.file
            if path.endswith(".symlink"):
                dist.barrier()
        """,
    "part of a name with the rank": """
        def fetch(name):
            kind = "{}/rank{}".format(name, dist.get_rank()).lower()
            if kind == "local":
                dist.barrier()
        """,
    "groups created if missing": """
        GROUPS = {}

        def own(ranks):
            key = (dist.get_rank(), "own")
            if key not in GROUPS:
                GROUPS[key] = dist.new_group(ranks)
            return GROUPS[key]
        """,
    "a lazily cached lookup": """
        OLD = None

        def is_old():
            global OLD
            if OLD is None:
                OLD = elsewhere.capability() < 5
            return OLD

        def send():
            if dist.get_rank() == 0:
                is_old()
            if is_old():
                dist.barrier()
        """,
    "an optional group argument": """
        class Optimizer:
            def __init__(self, group):
                self.group = group if group is not None else dist.group.WORLD

            def step(self, value):
                dist.all_reduce(value, group=self.group)

        def train(members, value):
            if dist.get_rank() in members:
                Optimizer(elsewhere.group).step(value)
        """,
    "existence of a sharded checkpoint": """
        from torch.distributed import checkpoint

        def resume(state, path):
            if os.path.exists(path):
                checkpoint.load(state, checkpoint_id=path)
        """,
    "a progress bar on one rank, in an expression": """
        from tqdm import tqdm

        def train(loader, rounds):
            steps = 0
            for batch in tqdm(enumerate(loader)) if dist.get_rank() == 0 else enumerate(loader):
                steps += 1
                dist.barrier()
        """,
    "an attribute that all ranks reassign": """
        class Saver:
            def __init__(self):
                self.saved = False

            def save(self):
                if self.saved:
                    return
                if dist.get_rank() == 0:
                    self.saved = True
                self.saved = elsewhere.share(self.saved)
                dist.barrier()
        """,
    "an exception selected by its text": """
        def start(model):
            try:
                elsewhere.wrap(model)
            except RuntimeError as fault:
                if "PrivateUse1" in str(fault):
                    dist.barrier()
                else:
                    raise
        """,
    "a missing library": """
        def start():
            try:
                import engine
            except Exception:
                dist.barrier()
        """,
    "a previously created group": """
        def group_of(groups, size):
            ranks = tuple(range(dist.get_rank() % size, 8, size))
            if groups is not None and ranks in groups:
                return groups[ranks]
            dist.barrier()
        """,
    "an optional argument with a default": """
        def start():
            store = None
            if dist.get_rank() == 0:
                store = elsewhere.Store()
            if store is None:
                store = elsewhere.Store()
            if store is not None:
                dist.barrier()
        """,
    "part of a path split by a library": """
        def fetch(name):
            parts = elsewhere.parse(f"{name}/{dist.get_rank()}")
            if parts.scheme == "wandb":
                dist.barrier()
        """,
    "the end of the data": """
        class Steps:
            def step(self, batches):
                batch = next(batches, None)
                for each in [batch]:
                    if elsewhere.over(each):
                        raise StopIteration
                dist.barrier()

        def train(batches):
            while True:
                try:
                    Steps().step(batches)
                except StopIteration:
                    break
        """,
    "a sub-group in a thread": """
        import threading

        def share(group, value):
            dist.broadcast(value, 0, group=group)

        def start(value):
            threading.Thread(target=lambda: share(elsewhere.group, value)).start()
            dist.barrier()

        start(1)
        """,
}

DIFFERENT = {
    "output on one rank only": """
        def leads():
            if dist.get_rank() == 0:
                return True
            return False

        if leads():
            dist.barrier()
        """,
    "enumerated rank-local iterations": """
        for number, batch in enumerate(range(dist.get_rank())):
            dist.barrier()
        """,
    "finiteness of a rank-local loss": """
        def step(loss):
            if torch.isfinite(loss):
                dist.barrier()
        """,
    "one of two names by rank": """
        role = "leader" if dist.get_rank() == 0 else "worker"
        if role == "leader":
            dist.barrier()
        """,
    "creation if missing on one rank": """
        LOGS = {}

        def log(name, value):
            if name not in LOGS and dist.get_rank() == 0:
                LOGS[name] = []
                dist.barrier()
        """,
    "a file test on each rank": """
        def resume(path):
            if os.path.exists(path):
                dist.barrier()
        """,
    "the default group": """
        class Optimizer:
            def __init__(self, group=None):
                self.group = group if group is not None else dist.group.WORLD

            def step(self, value):
                dist.all_reduce(value, group=self.group)

        def train(value):
            if dist.get_rank() == 0:
                Optimizer().step(value)
        """,
    "an attribute that one rank reassigns": """
        class Saver:
            def __init__(self):
                self.saved = False

            def save(self):
                if self.saved:
                    return
                self.saved = elsewhere.share(self.saved)
                if dist.get_rank() == 0:
                    self.saved = True
                dist.barrier()
        """,
    "an out-of-memory error selected by its text": """
        def step(model, batch):
            try:
                model(batch)
            except RuntimeError as fault:
                if "out of memory" in str(fault):
                    dist.barrier()
                else:
                    raise
        """,
    "other work in an import guard": """
        def start():
            try:
                import engine

                engine.run()
            except Exception:
                dist.barrier()
        """,
    "the default group in a thread": """
        import threading

        def share(value):
            dist.broadcast(value, 0)

        def start(value):
            threading.Thread(target=lambda: share(value)).start()
            dist.barrier()

        start(1)
        """,
    "a repeated rank test in a callee": """
        def note():
            if dist.get_rank() == 0:
                dist.barrier()

        def step():
            if dist.get_rank() == 0:
                note()
        """,
}


@pytest.mark.parametrize("name", SAME)
def test_value_is_uniform(name, tmp_path):
    assert lines(tmp_path, SAME[name]) == []


@pytest.mark.parametrize("name", DIFFERENT)
def test_the_varying_version_is_found(name, tmp_path):
    assert lines(tmp_path, DIFFERENT[name])


def test_arguments_from_tests_are_ignored(tmp_path):
    (tmp_path / "engine.py").write_text(
        HEAD + "def go(rounds):\n    for _ in range(rounds):\n        dist.barrier()\n"
    )
    use = "import torch.distributed as dist\nfrom engine import go\n\ngo(dist.get_rank())\n"
    (tmp_path / "test_engine.py").write_text(use)
    assert lint_paths([tmp_path]).findings == ()
    (tmp_path / "main.py").write_text(use)
    assert [claim.rule for claim in lint_paths([tmp_path]).findings] == ["uneven-loop"]


def test_file_tests_in_another_file_are_reported_only_with_strict(tmp_path):
    (tmp_path / "storage.py").write_text(
        "import os\n\ndef is_there(path):\n    return os.path.exists(path)\n"
    )
    (tmp_path / "main.py").write_text(
        "import torch.distributed as dist\nfrom storage import is_there\n\n"
        "def resume(path):\n    if is_there(path):\n        dist.barrier()\n"
    )
    assert lint_paths([tmp_path]).findings == ()
    assert [claim.rule for claim in lint_paths([tmp_path], LintOptions(strict=True)).findings] == [
        "undecided"
    ]
