"""What looks as if it differed over ranks and does not, as public code has it; and beside it what does differ."""

import pytest

from holdfast.actions.lint.linting import lint
from holdfast.actions.lint.options import Options
from tests.facts.code.test_differing import HEAD, lines

SAME = {
    "a bar around the loader of one rank, by a function": """
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
    "the number of a round, over what is a rank's own": """
        def train(limit):
            for number, batch in enumerate(elsewhere.loader(dist.get_rank())):
                if number >= limit:
                    break
                dist.barrier()
        """,
    "whether the norm of gradients is finite": """
        def step(optimizer, grad_norm):
            if torch.isfinite(grad_norm):
                dist.barrier()
        """,
    "how a file's name ends, whoever has it": """
        def fetch(name):
            path = elsewhere.link if dist.get_rank() == 0 else elsewhere.file
            if path.endswith(".symlink"):
                dist.barrier()
        """,
    "a part of a name that has the rank in it": """
        def fetch(name):
            kind = "{}/rank{}".format(name, dist.get_rank()).lower()
            if kind == "local":
                dist.barrier()
        """,
    "groups that each rank makes where it has none": """
        GROUPS = {}

        def own(ranks):
            key = (dist.get_rank(), "own")
            if key not in GROUPS:
                GROUPS[key] = dist.new_group(ranks)
            return GROUPS[key]
        """,
    "what is looked up when it is asked for first": """
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
    "a group that may be handed in": """
        class Optimizer:
            def __init__(self, group):
                self.group = group if group is not None else dist.group.WORLD

            def step(self, value):
                dist.all_reduce(value, group=self.group)

        def train(members, value):
            if dist.get_rank() in members:
                Optimizer(elsewhere.group).step(value)
        """,
    "whether a checkpoint of all ranks is there": """
        from torch.distributed import checkpoint

        def resume(state, path):
            if os.path.exists(path):
                checkpoint.load(state, checkpoint_id=path)
        """,
    "a bar around the loader of one rank, in an expression": """
        from tqdm import tqdm

        def train(loader, rounds):
            steps = 0
            for batch in tqdm(enumerate(loader)) if dist.get_rank() == 0 else enumerate(loader):
                steps += 1
                dist.barrier()
        """,
    "an attribute that all set again": """
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
    "an exception that is known by its text": """
        def start(model):
            try:
                elsewhere.wrap(model)
            except RuntimeError as fault:
                if "PrivateUse1" in str(fault):
                    dist.barrier()
                else:
                    raise
        """,
    "a library that is not installed": """
        def start():
            try:
                import engine
            except Exception:
                dist.barrier()
        """,
    "a group that was made before": """
        def group_of(groups, size):
            ranks = tuple(range(dist.get_rank() % size, 8, size))
            if groups is not None and ranks in groups:
                return groups[ranks]
            dist.barrier()
        """,
    "what those make who were not given it": """
        def start():
            store = None
            if dist.get_rank() == 0:
                store = elsewhere.Store()
            if store is None:
                store = elsewhere.Store()
            if store is not None:
                dist.barrier()
        """,
    "a part of a name that a library has taken apart": """
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
    "the members of a group, in a thread": """
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
    "what a function says to one rank alone": """
        def leads():
            if dist.get_rank() == 0:
                return True
            return False

        if leads():
            dist.barrier()
        """,
    "the rounds over what is a rank's own, numbered": """
        for number, batch in enumerate(range(dist.get_rank())):
            dist.barrier()
        """,
    "whether a rank's own loss is finite": """
        def step(loss):
            if torch.isfinite(loss):
                dist.barrier()
        """,
    "which of two names a rank has": """
        role = "leader" if dist.get_rank() == 0 else "worker"
        if role == "leader":
            dist.barrier()
        """,
    "what is made where it is missing, on one rank": """
        LOGS = {}

        def log(name, value):
            if name not in LOGS and dist.get_rank() == 0:
                LOGS[name] = []
                dist.barrier()
        """,
    "a file that each rank asks for": """
        def resume(path):
            if os.path.exists(path):
                dist.barrier()
        """,
    "a group that is that of all": """
        class Optimizer:
            def __init__(self, group=None):
                self.group = group if group is not None else dist.group.WORLD

            def step(self, value):
                dist.all_reduce(value, group=self.group)

        def train(value):
            if dist.get_rank() == 0:
                Optimizer().step(value)
        """,
    "an attribute that one rank sets last": """
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
    "a lack of memory, which is known by its text": """
        def step(model, batch):
            try:
                model(batch)
            except RuntimeError as fault:
                if "out of memory" in str(fault):
                    dist.barrier()
                else:
                    raise
        """,
    "something else is done where a library may be missing": """
        def start():
            try:
                import engine

                engine.run()
            except Exception:
                dist.barrier()
        """,
    "the group of all, in a thread": """
        import threading

        def share(value):
            dist.broadcast(value, 0)

        def start(value):
            threading.Thread(target=lambda: share(value)).start()
            dist.barrier()

        start(1)
        """,
    "who comes into a function that asks again": """
        def note():
            if dist.get_rank() == 0:
                dist.barrier()

        def step():
            if dist.get_rank() == 0:
                note()
        """,
}


@pytest.mark.parametrize("name", SAME)
def test_it_is_the_same_after_all(name, tmp_path):
    assert lines(tmp_path, SAME[name]) == []


@pytest.mark.parametrize("name", DIFFERENT)
def test_its_twin_differs(name, tmp_path):
    assert lines(tmp_path, DIFFERENT[name])


def test_what_a_test_hands_to_the_program_is_not_what_the_program_is_handed(tmp_path):
    (tmp_path / "engine.py").write_text(HEAD + "def go(rounds):\n    for _ in range(rounds):\n        dist.barrier()\n")
    use = "import torch.distributed as dist\nfrom engine import go\n\ngo(dist.get_rank())\n"
    (tmp_path / "test_engine.py").write_text(use)
    assert lint([tmp_path]).claims == ()
    (tmp_path / "main.py").write_text(use)
    assert [claim.rule for claim in lint([tmp_path]).claims] == ["uneven-loop"]


def test_that_another_file_asks_for_files_is_said_with_strict_alone(tmp_path):
    (tmp_path / "storage.py").write_text("import os\n\ndef is_there(path):\n    return os.path.exists(path)\n")
    (tmp_path / "main.py").write_text(
        "import torch.distributed as dist\nfrom storage import is_there\n\n"
        "def resume(path):\n    if is_there(path):\n        dist.barrier()\n"
    )
    assert lint([tmp_path]).claims == ()
    assert [claim.rule for claim in lint([tmp_path], Options(strict=True)).claims] == ["undecided"]
