"""Which values count as varying over ranks: short programs and the reported lines."""

import textwrap

import pytest

from holdfast.lint.run import lint_paths

HEAD = "import math\nimport os\nimport time\nimport torch\nimport torch.distributed as dist\nimport elsewhere\n"


def lines(tmp_path, text):
    """Return the lines of ``text`` with findings above advice."""
    path = tmp_path / "program.py"
    path.write_text(HEAD + textwrap.dedent(text))
    return [
        claim.finding.subject.line - HEAD.count("\n")
        for claim in lint_paths([path]).findings
        if claim.finding.level != "note"
    ]


SAME = {
    "a tensor's device": """
        item = torch.tensor(4, device=torch.cuda.current_device())
        if item is not None:
            dist.barrier()
        """,
    "a moved tensor": """
        if torch.ones(4).sum().to(torch.cuda.current_device()) > 0:
            dist.barrier()
        """,
    "whether a bound is set": """
        def step(optimizer):
            if math.isfinite(optimizer.config.threshold):
                dist.barrier()
        """,
    "each rank is in one group of a kind": """
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
    "whether the rank is set": """
        if os.environ.get("LOCAL_RANK") is not None:
            dist.barrier()
        """,
    "a side that raises": """
        def seconds(limit):
            if not math.isfinite(limit):
                raise ValueError
            return 4

        for _ in range(seconds(elsewhere.limit)):
            dist.barrier()
        """,
    "an object constructed with the rank": """
        class Bench:
            def __init__(self, rank):
                self.rank = rank

        bench = Bench(dist.get_rank())
        dist.all_reduce(torch.zeros(elsewhere.size(bench)))
        """,
    "a write to a rank's part of a tensor": """
        found = torch.zeros(4, 4)
        if dist.get_rank() == 0:
            found[0, 1] = 1.0
        dist.all_reduce(found)
        """,
    "a library instance constructed with the rank": """
        class Trainer:
            def __init__(self):
                self.engine = elsewhere.Engine(seed=dist.get_rank())
                self.steps = self.engine.steps

            def fit(self):
                for _ in range(self.steps):
                    dist.barrier()

        Trainer().fit()
        """,
    "state of an element selected by rank": """
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
    "an instance created on one rank": """
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
    "the root of a passed group": """
        def share(item, group):
            dist.broadcast(item, src=dist.get_rank() // 8 * 8, group=group)
        """,
    "a loader prepared by Accelerate": """
        from accelerate import Accelerator

        here = Accelerator()
        files = [name for name in os.listdir(elsewhere.folder) if name]
        for batch in here.prepare(torch.utils.data.DataLoader(files)):
            here.gather(batch)
        """,
    "a group that only members have": """
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
    "creation if missing, first on one rank": """
        class Trainer:
            def __init__(self):
                self._model = None

            @property
            def model(self):
                if self._model is None:
                    self._model = elsewhere.build()
                return self._model

            def save(self):
                if dist.get_rank() == 0:
                    elsewhere.save(self.model)

            def go(self):
                if self._model is not None:
                    dist.barrier()

        trainer = Trainer()
        trainer.save()
        trainer.go()
        """,
    "a dict entry next to the rank": """
        class Sampler:
            def __init__(self, rank, options):
                self.rank, self.options = rank, options
                self.rounds = options["rounds"]

        given = {"rank": dist.get_rank(), "options": {"rounds": 4, "seed": dist.get_rank()}}
        for _ in range(Sampler(**given).rounds):
            dist.barrier()
        """,
    "a path with the rank": """
        def save(folder):
            path = "{}/{}.pt".format(folder, dist.get_rank())
            if path.endswith(".link"):
                dist.barrier()

        save(f"{elsewhere.folder}/{dist.get_rank()}")
        """,
    "presence of rank-local data": """
        class Loop:
            def __init__(self):
                self.held = None

            def step(self, batches):
                self.held = [bool(torch.isnan(batch)) for batch in batches]
                if self.held is None:
                    dist.barrier()

        Loop().step(elsewhere.batches)
        """,
    "type of rank-local data": """
        def move(batch):
            if isinstance(batch, torch.Tensor):
                dist.barrier()

        move(elsewhere.batches * dist.get_rank())
        """,
    "keys of a dict with rank-local values": """
        def data(train):
            found = {}
            if train:
                found["train"] = elsewhere.load(dist.get_rank())
            return found

        if "train" in data(elsewhere.train):
            dist.barrier()
        """,
    "length of a module constructed with the rank": """
        class Loss(torch.nn.Module):
            def __init__(self, rank):
                self.rank = rank

        class Task:
            def __init__(self, loss):
                self.loss = loss

            def go(self):
                for _ in self.loss:
                    dist.barrier()

        Task(Loss(dist.get_rank())).go()
        """,
    "a tensor written at rank-local indices": """
        found = torch.zeros(elsewhere.size)
        for at in range(dist.get_rank(), elsewhere.size, dist.get_world_size()):
            found[at] = 1.0
        dist.all_reduce(found)
        """,
    "a lazily created group": """
        class Groups:
            def __init__(self):
                self.made = None

            def get(self):
                if self.made is None:
                    self.made = dist.new_group()
                return self.made

        def size():
            return Groups().get().size()

        def log():
            print(size())

        if dist.get_rank() == 0:
            log()
        """,
    "exclusive uniform branches": """
        def log(text, together):
            if not together and dist.get_rank() == 0:
                print(text)
            elif together:
                dist.barrier()
        """,
    "the root in a loop over ranks": """
        for rank in range(dist.get_world_size()):
            if rank == dist.get_rank():
                dist.broadcast(elsewhere.mine, dist.get_rank())
            else:
                dist.broadcast(elsewhere.others, rank)
        """,
    "membership in all ranks": """
        everybody = range(dist.get_world_size())
        if dist.get_rank() in everybody:
            dist.barrier()
        """,
    "a list filled by the ranks that continue": """
        def run():
            if dist.get_rank() == 3:
                return
            found = []
            found.append(elsewhere.one)
            for each in found:
                dist.barrier(elsewhere.group)

        run()
        """,
    "a number in a file name": """
        def train(folder):
            last = os.listdir(folder)[-1]
            step = int(last.split("-")[1])
            while step < elsewhere.steps:
                dist.barrier()
                step += 1
        """,
    "one of several files, or an error": """
        def load(path):
            if os.path.isfile(path):
                dist.broadcast(elsewhere.whole(path), 0)
                return
            raise FileNotFoundError(path)
        """,
    "a progress bar on one rank's loader": """
        from tqdm import tqdm

        def train(batches):
            loader = elsewhere.loader(batches)
            watched = tqdm(loader) if dist.get_rank() == 0 else loader
            for batch in watched:
                dist.barrier()
        """,
    "one of several file formats": """
        def load(path):
            if os.path.isdir(path):
                dist.broadcast(elsewhere.parts(path), 0)
            else:
                dist.broadcast_object_list(elsewhere.whole(path), 0)
        """,
    "variables set without a process group": """
        def begin(fake):
            if fake:
                dist.init_process_group("fake")
                return
            os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "3"
            dist.init_process_group("nccl")

        begin(elsewhere.fake)
        """,
}
DIFFERENT = {
    "a flag set on one rank": """
        class Saver:
            def __init__(self):
                self.saved = False

            def save(self):
                if dist.get_rank() == 0:
                    self.saved = True

            def go(self):
                if self.saved:
                    dist.barrier()

        saver = Saver()
        saver.save()
        saver.go()
        """,
    "an object created on one rank": """
        class Logger:
            def __init__(self):
                self.writer = None
                if dist.get_rank() == 0:
                    self.writer = elsewhere.Writer()

            def log(self):
                if self.writer:
                    dist.barrier()

        Logger().log()
        """,
    "a dict lookup by rank": """
        found = {"rank": dist.get_rank(), "size": 8}
        if found["rank"] < 4:
            dist.barrier()
        """,
    "a dict entry set on one rank": """
        def forward(text, images=None):
            if images is not None:
                dist.barrier()

        batch = {"text": elsewhere.text}
        if dist.get_rank() == 1:
            batch["images"] = elsewhere.images
        forward(**batch)
        """,
    "the rank": """
        if int(os.environ.get("RANK", -1)) != 0:
            dist.barrier()
        """,
    "a rank-dependent root": """
        def share(item):
            dist.broadcast(item, src=dist.get_rank() // 8 * 8)
        """,
    "group membership": """
        if dist.get_rank(elsewhere.group) == -1:
            dist.barrier()
        """,
    "the length of an object constructed with the rank": """
        class Shard:
            def __init__(self, rank):
                self.rank = rank

            def __len__(self):
                return self.rank

        for _ in range(len(Shard(dist.get_rank()))):
            dist.barrier()
        """,
    "a library function of the rank": """
        if elsewhere.leads(dist.get_rank()):
            dist.barrier()
        """,
}


@pytest.mark.parametrize("name", SAME)
def test_value_is_uniform(name, tmp_path):
    assert lines(tmp_path, SAME[name]) == []


@pytest.mark.parametrize("name", DIFFERENT)
def test_value_varies(name, tmp_path):
    assert lines(tmp_path, DIFFERENT[name])


def test_one_name_lookup_does_not_taint_others(tmp_path):
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


def test_tables_apply_to_a_linted_library(tmp_path):
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
    assert lint_paths([tmp_path]).findings == ()


def test_assignments_in_tests_are_ignored(tmp_path):
    (tmp_path / "engine.py").write_text(
        HEAD + "class Engine:\n    def __init__(self, rounds):\n        self.rounds = rounds\n\n"
        "    def go(self):\n        for _ in range(self.rounds):\n            dist.barrier()\n"
    )
    use = "import torch.distributed as dist\nfrom engine import Engine\n\nEngine(dist.get_rank())\n"
    (tmp_path / "test_engine.py").write_text(use)
    assert lint_paths([tmp_path]).findings == ()
    (tmp_path / "main.py").write_text(use)
    assert [claim.rule for claim in lint_paths([tmp_path]).findings] == ["uneven-loop"]
