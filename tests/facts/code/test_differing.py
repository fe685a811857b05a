"""What is believed to differ over ranks, and what is not: programs of a few lines, and the lines that are named."""

import textwrap

import pytest

from holdfast.actions.lint import lint

HEAD = "import math\nimport os\nimport time\nimport torch\nimport torch.distributed as dist\nimport elsewhere\n"


def lines(tmp_path, text):
    """The lines of ``text`` on which something worse than advice is said."""
    path = tmp_path / "program.py"
    path.write_text(HEAD + textwrap.dedent(text))
    return [
        claim.finding.subject.line - HEAD.count("\n") for claim in lint([path]).claims if claim.finding.level != "note"
    ]


SAME = {
    "a tensor's device is not what is in it": """
        item = torch.tensor(4, device=torch.cuda.current_device())
        if item is not None:
            dist.barrier()
        """,
    "a tensor that is moved": """
        if torch.ones(4).sum().to(torch.cuda.current_device()) > 0:
            dist.barrier()
        """,
    "whether a bound is set": """
        def step(optimizer):
            if math.isfinite(optimizer.config.threshold):
                dist.barrier()
        """,
    "every rank is in one group of the kind": """
        GROUP = None

        def make(many):
            global GROUP
            rank = dist.get_rank()
            for ranks in many:
                group = dist.new_group(ranks)
                if rank in ranks:
                    GROUP = group

        def size():
            if not GROUP:
                return elsewhere.size
            else:
                return GROUP.size()

        make([[0, 1], [2, 3]])
        for _ in range(size()):
            dist.barrier()
        """,
    "whether a launcher started the job": """
        rounds = 8
        if int(os.environ.get("RANK", -1)) != -1:
            rounds //= dist.get_world_size()
        for _ in range(rounds):
            dist.barrier()
        """,
    "a rank is there or not": """
        if os.environ.get("LOCAL_RANK") is not None:
            dist.barrier()
        """,
    "who raises has no value": """
        def seconds(limit):
            if not math.isfinite(limit):
                raise ValueError
            return 4

        for _ in range(seconds(elsewhere.limit)):
            dist.barrier()
        """,
    "an object that was given a rank has no length for that": """
        class Bench:
            def __init__(self, rank):
                self.rank = rank

        bench = Bench(dist.get_rank())
        dist.all_reduce(torch.zeros(elsewhere.size(bench)))
        """,
    "a rank's own part of a tensor is written": """
        found = torch.zeros(4, 4)
        if dist.get_rank() == 0:
            found[0, 1] = 1.0
        dist.all_reduce(found)
        """,
    "an instance of a class elsewhere that is given a rank": """
        class Trainer:
            def __init__(self):
                self.engine = elsewhere.Engine(seed=dist.get_rank())
                self.steps = self.engine.steps

            def fit(self):
                for _ in range(self.steps):
                    dist.barrier()

        Trainer().fit()
        """,
    "what a state says that each rank picks from a list by its number": """
        class Loop:
            def restore(self, states):
                state = states[dist.get_rank()]
                self.step = state["step"]

            def go(self):
                if self.step % 10 == 0:
                    dist.barrier()

        loop = Loop()
        loop.restore(elsewhere.states())
        loop.go()
        """,
    "an instance that one rank makes for itself": """
        class State:
            def __init__(self):
                self.find()

            def find(self):
                self.backend = elsewhere.backend()

        if dist.get_rank() == 0:
            print(State().backend)
        if State().backend == "nccl":
            dist.barrier()
        """,
    "the root of a group that was handed in, which each rank may have its own": """
        def share(item, group):
            dist.broadcast(item, src=dist.get_rank() // 8 * 8, group=group)
        """,
    "the batches of a loader that Accelerate has prepared": """
        from accelerate import Accelerator

        here = Accelerator()
        files = [name for name in os.listdir(elsewhere.folder) if name]
        for batch in here.prepare(torch.utils.data.DataLoader(files)):
            here.gather(batch)
        """,
    "a group that only members have, once it is there": """
        def member():
            if dist.get_rank() not in elsewhere.members:
                return None
            return elsewhere.make()

        def group():
            made = member()
            if made is None:
                raise RuntimeError
            return made

        class Meeting:
            def __init__(self):
                self.group = group()
                self.left = self.group.count

            def go(self):
                while self.left:
                    dist.barrier()

        Meeting().go()
        """,
}
DIFFERENT = {
    "which rank it is": """
        if int(os.environ.get("RANK", -1)) != 0:
            dist.barrier()
        """,
    "the root of all ranks": """
        def share(item):
            dist.broadcast(item, src=dist.get_rank() // 8 * 8)
        """,
    "whether it is a member": """
        if dist.get_rank(elsewhere.group) == -1:
            dist.barrier()
        """,
    "the length of what is made for a rank": """
        class Shard:
            def __init__(self, rank):
                self.rank = rank

            def __len__(self):
                return self.rank

        for _ in range(len(Shard(dist.get_rank()))):
            dist.barrier()
        """,
    "what a function elsewhere says of a rank": """
        if elsewhere.leads(dist.get_rank()):
            dist.barrier()
        """,
}


@pytest.mark.parametrize("name", SAME)
def test_it_is_the_same_on_all_ranks(name, tmp_path):
    assert lines(tmp_path, SAME[name]) == []


@pytest.mark.parametrize("name", DIFFERENT)
def test_it_differs(name, tmp_path):
    assert lines(tmp_path, DIFFERENT[name])


def test_of_a_function_that_is_asked_for_many_names_the_others_do_not_answer(tmp_path):
    names = ("A", "B", "C", "D", "E", "F", "G", "H", "I", "RANK")
    asked = "\n".join(f"V{name} = variable({name!r})" for name in names)
    text = f"""
def variable(name):
    return os.environ[name]

{asked}
for _ in range(int(variable("ROUNDS"))):
    dist.barrier()
"""
    assert lines(tmp_path, text) == []


def test_of_a_library_that_is_linted_itself_the_tables_know_more(tmp_path):
    package = tmp_path / "accelerate"
    package.mkdir()
    (package / "__init__.py").write_text("from .accelerator import Accelerator\n")
    (package / "accelerator.py").write_text(
        "import os\n\nclass Accelerator:\n    def prepare(self, loader):\n"
        "        return list(range(int(os.environ['RANK'])))\n"
    )
    program = tmp_path / "train.py"
    program.write_text(
        "from accelerate import Accelerator\n\nhere = Accelerator()\n"
        "for batch in here.prepare(object()):\n    here.gather(batch)\n"
    )
    assert lint([tmp_path]).claims == ()
