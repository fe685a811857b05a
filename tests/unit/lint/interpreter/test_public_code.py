"""Correct code of public projects that looked wrong, each with a version that is wrong."""

import textwrap

import pytest

from holdfast.core.findings import Level
from holdfast.lint.run import lint_paths

HEAD = "import os\nimport torch, yaml\nimport torch.distributed as dist\nimport elsewhere\n"
#: Correct program, and the replacement that breaks it: the finding is on the line with ``# found``.
PAIRS = {
    "one entry of a configuration is the rank": (
        """
        def start(args):
            args["rank"] = int(os.environ["RANK"])
            args["gpu"] = args["rank"] % 8
            dist.init_process_group("nccl")

        config = yaml.safe_load(open("config.yaml"))
        start(config)
        for _ in range(config["rounds"]):  # found
            dist.barrier()
        """,
        ('config["rounds"]', 'config["gpu"]'),
    ),
    "one entry of a nested configuration is the rank": (
        """
        config = yaml.safe_load(open("config.yaml"))
        config["train"]["rank"] = dist.get_rank()
        for _ in range(config["train"]["rounds"]):  # found
            dist.barrier()
        """,
        ('["train"]["rounds"]', '["train"]["rank"]'),
    ),
    "an attribute of a configuration": (
        """
        config = elsewhere.load("config.yaml")
        config["rank"] = dist.get_rank()
        for _ in range(config.rounds):  # found
            dist.barrier()
        """,
        ("config.rounds", "config.rank"),
    ),
    "a dict that is updated": (
        """
        config = {"rounds": 3}
        config.update({"rank": dist.get_rank()}, gpu=0)
        for _ in range(config.get("rounds")):  # found
            dist.barrier()
        """,
        ('get("rounds")', 'get("rank")'),
    ),
    "a configuration that is updated from another": (
        """
        config, other = elsewhere.load("a"), elsewhere.load("b")
        other["rank"] = dist.get_rank()
        config["seed"] = dist.get_rank()
        config.update(other)
        for _ in range(config["rounds"]):  # found
            dist.barrier()
        """,
        ('config["rounds"]', 'config["rank"]'),
    ),
    "named arguments from a configuration": (
        """
        def train(rounds=1, rank=0, **options):
            for _ in range(rounds):  # found
                dist.barrier()

        config = elsewhere.load("config.yaml")
        config["rank"] = dist.get_rank()
        train(**config)
        """,
        ("range(rounds)", "range(rank)"),
    ),
    "both sides fill an entry": (
        """
        config = elsewhere.load("config.yaml")
        if elsewhere.is_new:
            config["rank"] = dist.get_rank()
        else:
            config["rank"] = dist.get_rank() % 8
        for _ in range(config["rounds"]):  # found
            dist.barrier()
        """,
        ('config["rounds"]', 'config["rank"]'),
    ),
    "a group that a function creates": (
        """
        GROUP = None

        def create(size):
            global GROUP
            for first in range(0, dist.get_world_size(), size):
                group = dist.new_group(range(first, first + size))
                if dist.get_rank() // size * size == first:
                    GROUP = group

        def group_of_rank():
            return GROUP

        def share(value, size):
            dist.broadcast(value, dist.get_rank() // size * size, group=group_of_rank())  # found
        """,
        ("group=group_of_rank()", "group=None"),
    ),
    "the process is a job of its own": (
        """
        def export(model):
            if int(os.environ["RANK"]) != 0:
                return  # found
            if os.environ.get("WORLD_SIZE") != "1":
                os.environ["WORLD_SIZE"] = "1"
            dist.init_process_group("gloo")
            dist.barrier()
        """,
        ('os.environ["WORLD_SIZE"] = "1"', 'os.environ["MASTER_PORT"] = "1"'),
    ),
    "a function makes the process a job of its own": (
        """
        def starts_alone():
            if int(os.environ["RANK"]) != 0:
                return False
            os.environ.update({"RANK": "0", "WORLD_SIZE": "1"})
            return True

        def export(model):
            if not starts_alone():
                return  # found
            dist.init_process_group("gloo")
            dist.barrier()
        """,
        ('"WORLD_SIZE": "1"', '"WORLD_SIZE": "2"'),
    ),
    "the ranks that stay form a smaller job": (
        """
        def start(args):
            if int(os.getenv("RANK", "0")) % args.parts != 0:
                exit(0)  # found
            os.environ["WORLD_SIZE"] = str(int(os.environ["WORLD_SIZE"]) // args.parts)
            dist.init_process_group("nccl")
            dist.barrier()
        """,
        ('os.environ["WORLD_SIZE"] =', "size ="),
    ),
    "one rank starts a job of its own after the others' end": (
        """
        def join(size):
            elsewhere.prepare()
            dist.init_process_group("gloo", rank=0, world_size=size)

        def test(rank):
            dist.destroy_process_group()
            if rank == 0:
                join(1)
                dist.barrier()  # found

        test(dist.get_rank())
        """,
        ("                join(1)\n", ""),
    ),
    "a placeholder for what the first rank sends": (
        """
        def share(data):
            if dist.get_rank() == 0:
                data.indices = elsewhere.choose(data.count)[dist.get_rank() :]
            indices = torch.tensor(data.indices) if dist.get_rank() == 0 else torch.zeros(data.count)
            dist.broadcast(indices, 0)  # found
        """,
        ("dist.broadcast(indices, 0)", "dist.all_reduce(indices)"),
    ),
    "a bound on the index keeps all ranks in step": (
        """
        def answer(batches, fewest):
            for index, batch in enumerate(batches[dist.get_rank() :: dist.get_world_size()]):  # found
                elsewhere.answer(batch)
                if index % 10 == 0 and index < fewest:
                    dist.barrier()
        """,
        (" and index < fewest", ""),
    ),
    "groups are created where their getter fails": (
        """
        def setup():
            try:
                elsewhere.get_tp_group()
            except Exception:
                dist.new_group([0, 1])  # found
        """,
        ("get_tp_group()", "load_weights()"),
    ),
    "flags exclude each other": (
        """
        def log(text, main_only=False, node_only=True, in_order=False):
            is_main, is_first = dist.get_rank() == 0, int(os.environ["LOCAL_RANK"]) == 0
            if (main_only or node_only) and in_order:
                raise ValueError(text)
            if (main_only and is_main) or (node_only and is_first):
                print(text)
                return  # found
            if in_order:
                dist.barrier()

        log("text", *elsewhere.flags)
        """,
        ("(main_only or node_only) and in_order", "main_only and node_only and in_order"),
    ),
    "a table of groups that all ranks fill": (
        """
        GROUPS = {}

        def group_of(ranks):
            if tuple(ranks) not in GROUPS:
                GROUPS[tuple(ranks)] = dist.new_group(list(ranks))  # found
            return GROUPS[tuple(ranks)]

        def create(size):
            first = dist.get_rank() // size * size
            for start in range(0, dist.get_world_size(), size):
                group_of(range(start, start + size))
            return group_of(range(first, first + size))

        create(2)
        """,
        ("group_of(range(start, start + size))", "print(start)"),
    ),
    "a loss that helpers average": (
        """
        def total(values):
            return values[0] if len(values) == 1 else values[0] + total(values[1:])

        def average(loss):
            if not dist.is_initialized():
                return loss
            losses = [torch.empty_like(loss) for _ in range(dist.get_world_size())]
            dist.all_gather(losses, loss)
            return total(losses) / len(losses)

        def train(model, batches):
            for batch in batches:
                loss = average(model(batch)).item()
                if torch.isnan(loss):
                    break  # found
                dist.barrier()
        """,
        ("average(model(batch)).item()", "model(batch).item()"),
    ),
    "a table by process ids": (
        """
        STATES = {}

        def reload():
            state = STATES.get(os.getpid())
            if state is None:
                return  # found
            dist.barrier()
        """,
        ("STATES.get(os.getpid())", "None if dist.get_rank() else 1"),
    ),
    "one side loads what the other makes empty": (
        """
        def share(data, sizes):
            if dist.get_rank() == 0:
                tensors = []
                for size in sizes:
                    tensors.append(elsewhere.fit(data, size))
            else:
                tensors = [torch.empty(size) for size in sizes]
            for tensor in tensors:  # found
                dist.broadcast(tensor, src=0)
        """,
        ("[torch.empty(size) for size in sizes]", "[]"),
    ),
    "both sides enter the same keys": (
        """
        def evaluate(config):
            done = {}
            for task in config.tasks:
                if dist.get_rank() == 0:
                    with open(task.path) as file:
                        done[task.label] = yaml.safe_load(file)
                else:
                    done[task.label] = {}
            if all(task.label in done for task in config.tasks):
                return  # found
            dist.barrier()
        """,
        ("done[task.label] = {}", "pass"),
    ),
    "keys of a dict whose values differ": (
        """
        def share(files, names):
            totals = {}
            for name in names:
                data = torch.load(f"{name}{dist.get_rank()}")
                if torch.isnan(data).any():
                    data = torch.zeros(1)
                totals[name] = data.sum()
            for name in totals.keys():
                if name == "weight":
                    continue  # found
                dist.all_reduce(totals[name])
        """,
        ('name == "weight"', "totals[name] > 0"),
    ),
    "a number that ranks agree on where they agreed to stop": (
        """
        def share(value):
            if dist.is_available() and dist.is_initialized():
                tensor = torch.tensor(value)
                dist.broadcast(tensor, 0)
                return tensor.item()
            return value

        def ends(monitor):
            stops, more = False, 0
            if dist.get_rank() == 0:
                stops, more = monitor.ask()
            stops = share(stops)
            if stops:
                more = share(more)
            return stops, more

        def train(monitor, last):
            for step in range(1000):
                stops, more = ends(monitor)
                if stops:
                    last = step + more
                if step >= last:
                    dist.barrier()  # found
        """,
        ("more = share(more)", "print(more)"),
    ),
    "each rank has a group": (
        """
        def own(many):
            groups = [dist.new_group(ranks) for ranks in many]
            for number, ranks in enumerate(many):
                if dist.get_rank() in ranks:
                    return groups[number]

        class Layer:
            def __init__(self, many):
                self.group = own(many)
                self.rank = dist.get_rank()

            def share(self, value):
                if self.group:
                    dist.all_reduce(value)  # found

        Layer(elsewhere.groups).share(1)
        """,
        ("if self.group", "if self.rank"),
    ),
    "a model that is whole on each rank": (
        """
        from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

        def main(config, model):
            if config.enable_fsdp:
                model = FullyShardedDataParallel(model)
            if config.enable_fsdp:
                save(model)
            elif dist.get_rank() == 0:
                save(model)  # found

        def save(model):
            torch.save(model.state_dict(), "model.pt")
        """,
        ("elif dist.get_rank() == 0", "if dist.get_rank() == 0"),
    ),
}


def findings(folder, text):
    """Return the line and level of the findings above advice."""
    path = folder / "program.py"
    path.write_text(HEAD + text)
    return [
        (claim.finding.subject.line, claim.finding.level)
        for claim in lint_paths([path]).findings
        if claim.finding.level is not Level.NOTE
    ]


@pytest.mark.parametrize("name", PAIRS)
def test_the_correct_version_has_no_finding(name, tmp_path):
    assert findings(tmp_path, textwrap.dedent(PAIRS[name][0])) == []


@pytest.mark.parametrize("name", PAIRS)
def test_the_wrong_version_is_found(name, tmp_path):
    text, (right, wrong) = PAIRS[name]
    assert text.count(right) == 1
    text = HEAD + textwrap.dedent(text.replace(right, wrong))
    (line,) = [at for at, each in enumerate(text.split("\n"), 1) if "# found" in each]
    assert [at for at, _ in findings(tmp_path, text.removeprefix(HEAD))] == [line]


def test_a_test_of_unknown_answer_in_a_called_function_is_a_warning(tmp_path):
    text = """
def total(value):
    if isinstance(value, torch.Tensor):
        dist.all_reduce(value)
    return value

def report(value):
    if dist.get_rank() == 0:
        print(total(value))

report(elsewhere.value)
"""
    assert findings(tmp_path, text) == [(HEAD.count("\n") + 9, Level.WARNING)]
    for certain in ("dist.is_initialized()", "elsewhere.is_distributed()", "elsewhere.args.dist"):
        certain_text = text.replace("isinstance(value, torch.Tensor)", certain)
        assert findings(tmp_path, certain_text) == [(HEAD.count("\n") + 9, Level.ERROR)]


def test_a_flag_of_an_object_that_may_be_off_is_a_warning(tmp_path):
    text = """
class Evaluator:
    def __init__(self, distributed):
        self.distributed = distributed

    def evaluate(self):
        if self.distributed:
            dist.barrier()

def test(config):
    evaluator = Evaluator(config.evaluates_on_all)
    if config.evaluates_on_all or dist.get_rank() == 0:
        evaluator.evaluate()

test(elsewhere.load("config.yaml"))
"""
    assert findings(tmp_path, text) == [(HEAD.count("\n") + 13, Level.WARNING)]
    on = text.replace("Evaluator(config.evaluates_on_all)", "Evaluator(True)")
    assert findings(tmp_path, on) == [(HEAD.count("\n") + 13, Level.ERROR)]


def test_a_configuration_in_itself_ends(tmp_path):
    text = """
config = elsewhere.load("config.yaml")
config["rank"] = dist.get_rank()
while elsewhere.goes_on():
    config["parent"] = config
    config["rest"].update(config)
for _ in range(config["rounds"]):
    dist.barrier()
"""
    assert findings(tmp_path, text) == []


def test_a_setting_in_the_ranks_own_checkpoint_is_a_warning(tmp_path):
    text = """
def resume(folder):
    state = torch.load(folder / f"{dist.get_rank()}.pt")
    if state.get("args", {}).get("kind", "whole") == "whole":
        dist.barrier()
"""
    assert findings(tmp_path, text) == [(HEAD.count("\n") + 5, Level.WARNING)]
    by_key = text.replace('state.get("args", {}).get("kind", "whole")', 'state["args"]["kind"]')
    assert findings(tmp_path, by_key) == []
    by_rank = text.replace(
        'state.get("args", {}).get("kind", "whole") == "whole"', "dist.get_rank()"
    )
    assert findings(tmp_path, by_rank) == [(HEAD.count("\n") + 5, Level.ERROR)]
