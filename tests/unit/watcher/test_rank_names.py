"""Which tests in a program depend on the rank."""

import ast

import pytest

from holdfast.watcher.rank_names import RankNames, is_rank_decorator, is_rank_name


@pytest.mark.parametrize(
    "name",
    [
        "rank",
        "RANK",
        "_rank",
        "local_rank",
        "ddp_local_rank",
        "dp_rank",
        "get_rank",
        "get_node_local_rank",
        "is_main",
        "is_main_process",
        "is_local_main_process",
        "master_process",
        "is_global_zero",
        "is_rank_zero",
        "is_master",
        "rank_id",
        "rank0",
        "is_rank_0",
        "process_index",
        "is_first_rank",
    ],
)
def test_rank_names_are_recognized(name):
    assert is_rank_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "frank",
        "ranks",
        "num_ranks",
        "rank_count",
        "world_size",
        "lora_rank",
        "low_rank",
        "svd_low_rank",
        "matrix_rank",
        "max_rank",
        "src_rank",
        "pagerank",
        "main",
        "domain",
        "remain",
        "is_mainland",
        "prank",
    ],
)
def test_other_names_are_not_rank_names(name):
    assert not is_rank_name(name)


def test_decorators_for_one_rank_are_recognized():
    assert all(
        map(
            is_rank_decorator,
            ["rank_zero_only", "on_main_process", "master_only", "only_on_rank_zero"],
        )
    )
    assert not any(map(is_rank_decorator, ["record", "main", "no_grad", "wraps", "only"]))


HOLDER = """
class Trainer:
    def __init__(self, rank):
        self.first = rank == 0
    def step(self):
        if self.{}: pass
"""


def last_test(program):
    """Return whether the test of the last ``if`` depends on the rank."""
    tree = ast.parse(program)
    names = RankNames(tree)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    tests = [
        (node, function)
        for function in [None, *functions]
        for node in ast.walk(function or tree)
        if isinstance(node, ast.If)
    ]
    node, function = max(tests, key=lambda pair: (pair[0].lineno, pair[1].lineno if pair[1] else 0))
    return names.depends_on_rank(node.test, names.scope(function))


@pytest.mark.parametrize(
    "program",
    [
        "if rank == 0: pass",
        "if not args.local_rank: pass",
        "if dist.get_rank() % 2: pass",
        "if step > 3 and trainer.is_global_zero: pass",
        "if should_log(rank): pass",
        "if os.environ['RANK'] == '0': pass",
        "if int(os.environ.get('LOCAL_RANK', 0)) == 0: pass",
        "if local_rank not in [-1, 0]: pass",
        "if 0 < rank < 4: pass",
        "who = dist.get_rank()\nfirst = who == 0\nif first and ready: pass",
        "who, many = get_rank(), get_world_size()\nif who: pass",
        "if (who := get_rank()) == 0: pass",
        "who: int = int(os.environ['SLURM_PROCID'])\nif who == 0: pass",
        HOLDER.format("first"),
        "def first():\n    return dist.get_rank() == 0\nif first(): pass",
        "log = open('log') if rank == 0 else None\nif log is not None: pass",
        "half = rank // 2\nif half: pass",
        "first = rank == 0\ndef step():\n    if first: pass",
    ],
)
def test_rank_dependent_tests_are_found(program):
    assert last_test(program)


@pytest.mark.parametrize(
    "program",
    [
        "if step % 10 == 0: pass",
        "if 'RANK' in os.environ: pass",
        "if local_rank != -1: pass",
        "if rank is not None: pass",
        "if rank >= 0: pass",
        "ddp = int(os.environ.get('RANK', -1)) != -1\nif ddp: pass",
        "who, many = get_rank(), get_world_size()\nif many > 1: pass",
        "model = DDP(net, device_ids=[local_rank])\nloss = model(x)\nif loss > 3: pass",
        "device = f'cuda:{rank}'\nif device: pass",
        "name = 'rank%d' % rank\nif name: pass",
        HOLDER.format("ready"),
        "def one(rank):\n    flag = rank == 0\ndef two(flag):\n    if flag: pass",
        "if args.lora_rank > 8: pass",
        "if trainer.rank.known: pass",
        "part = parts[rank]\nif part: pass",
        "a = b\nb = a\nif a: pass",
    ],
)
def test_tests_equal_on_all_ranks_are_not_rank_dependent(program):
    assert not last_test(program)
