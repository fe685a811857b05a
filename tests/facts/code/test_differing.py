"""What is believed to differ over ranks, and what is not: programs of a few lines, and the lines that are named."""

import textwrap

import pytest

from holdfast.actions.lint.linting import lint

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
    "what is made where it is missing, and one rank asks first": """
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
    "what stands in a dict beside the rank": """
        class Sampler:
            def __init__(self, rank, options):
                self.rank, self.options = rank, options
                self.rounds = options["rounds"]

        given = {"rank": dist.get_rank(), "options": {"rounds": 4, "seed": dist.get_rank()}}
        for _ in range(Sampler(**given).rounds):
            dist.barrier()
        """,
    "a path with the rank in its name": """
        def save(folder):
            path = "{}/{}.pt".format(folder, dist.get_rank())
            if path.endswith(".link"):
                dist.barrier()

        save(f"{elsewhere.folder}/{dist.get_rank()}")
        """,
    "whether there are data, which each rank has its own of": """
        class Loop:
            def __init__(self):
                self.held = None

            def step(self, batches):
                self.held = [bool(torch.isnan(batch)) for batch in batches]
                if self.held is None:
                    dist.barrier()

        Loop().step(elsewhere.batches)
        """,
    "the kind of what each rank has for itself": """
        def move(batch):
            if isinstance(batch, torch.Tensor):
                dist.barrier()

        move(elsewhere.batches * dist.get_rank())
        """,
    "which keys a dict has, whatever each rank holds there": """
        def data(train):
            found = {}
            if train:
                found["train"] = elsewhere.load(dist.get_rank())
            return found

        if "train" in data(elsewhere.train):
            dist.barrier()
        """,
    "how long a module is that was given a rank": """
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
    "a tensor into which each rank writes its own places": """
        found = torch.zeros(elsewhere.size)
        for at in range(dist.get_rank(), elsewhere.size, dist.get_world_size()):
            found[at] = 1.0
        dist.all_reduce(found)
        """,
    "a group that is made when it is asked for first": """
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
    "where all go the same way together": """
        def log(text, together):
            if not together and dist.get_rank() == 0:
                print(text)
            elif together:
                dist.barrier()
        """,
    "the root of a message of one rank at a time": """
        for rank in range(dist.get_world_size()):
            if rank == dist.get_rank():
                dist.broadcast(elsewhere.mine, dist.get_rank())
            else:
                dist.broadcast(elsewhere.others, rank)
        """,
    "whether a rank is among all ranks": """
        everybody = range(dist.get_world_size())
        if dist.get_rank() in everybody:
            dist.barrier()
        """,
    "a list that those fill who go on": """
        def run():
            if dist.get_rank() == 3:
                return
            found = []
            found.append(elsewhere.one)
            for each in found:
                dist.barrier(elsewhere.group)

        run()
        """,
    "a number in a file's name": """
        def train(folder):
            last = os.listdir(folder)[-1]
            step = int(last.split("-")[1])
            while step < elsewhere.steps:
                dist.barrier()
                step += 1
        """,
    "which file is there, else it is refused": """
        def load(path):
            if os.path.isfile(path):
                dist.broadcast(elsewhere.whole(path), 0)
                return
            raise FileNotFoundError(path)
        """,
    "a loader that one rank watches": """
        from tqdm import tqdm

        def train(batches):
            loader = elsewhere.loader(batches)
            watched = tqdm(loader) if dist.get_rank() == 0 else loader
            for batch in watched:
                dist.barrier()
        """,
    "in which way a file is loaded": """
        def load(path):
            if os.path.isdir(path):
                dist.broadcast(elsewhere.parts(path), 0)
            else:
                dist.broadcast_object_list(elsewhere.whole(path), 0)
        """,
    "variables that are set where no group was made": """
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
    "a flag that one rank sets for itself": """
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
    "what one rank alone makes": """
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
    "what a rank finds in a dict": """
        found = {"rank": dist.get_rank(), "size": 8}
        if found["rank"] < 4:
            dist.barrier()
        """,
    "what one rank put into a dict": """
        def forward(text, images=None):
            if images is not None:
                dist.barrier()

        batch = {"text": elsewhere.text}
        if dist.get_rank() == 1:
            batch["images"] = elsewhere.images
        forward(**batch)
        """,
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


def test_what_a_test_of_the_program_sets_is_not_what_the_program_sets(tmp_path):
    (tmp_path / "engine.py").write_text(
        HEAD + "class Engine:\n    def __init__(self, rounds):\n        self.rounds = rounds\n\n"
        "    def go(self):\n        for _ in range(self.rounds):\n            dist.barrier()\n"
    )
    use = "import torch.distributed as dist\nfrom engine import Engine\n\nEngine(dist.get_rank())\n"
    (tmp_path / "test_engine.py").write_text(use)
    assert lint([tmp_path]).claims == ()
    (tmp_path / "main.py").write_text(use)
    assert [claim.rule for claim in lint([tmp_path]).claims] == ["uneven-loop"]
