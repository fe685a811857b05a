"""What library functions do is derived from their source; a wrong summary causes false findings."""

import textwrap

import pytest

from holdfast.lint import derive_summaries, library
from holdfast.lint.library_summaries import load_summaries
from holdfast.lint.run import lint_paths
from tests.unit.lint.programs import modules_from_sources

DERIVED = {
    "a collective on every path": (
        """
        def share(value):
            helper(value)
            return 3

        def helper(value):
            dist.broadcast(value, 0)
        """,
        ("broadcast", True, {}),
    ),
    "unless there is a single process": (
        """
        def share(value):
            if not dist.is_initialized():
                return value
            dist.all_reduce(value)
            return value
        """,
        ("all_reduce", True, {}),
    ),
    "unless the backend is a rare one": (
        """
        def share(value):
            if is_xla_available():
                raise NotImplementedError
            elif state.distributed_type in BACKENDS:
                dist.all_gather_object([], value)
            return value
        """,
        ("all_gather_object", False, {}),
    ),
    "unless a flag says otherwise": (
        """
        def share(value, *, local=False):
            if local:
                return
            dist.all_reduce(value)
        """,
        ("all_reduce", False, {"local": True}),
    ),
    "one rank before a block and the others after it": (
        """
        import contextlib

        @contextlib.contextmanager
        def share():
            if dist.get_rank() != 0:
                dist.barrier()
            yield
            if not dist.get_rank() != 0:
                dist.barrier()
        """,
        ("barrier", False, {}),
    ),
    "a collective of a group that is an argument": (
        """
        def share(value, group=None):
            dist.all_gather_object([], value, group=group)
        """,
        ("all_gather_object", False, {}),
    ),
    "only on one rank": (
        """
        def share(value):
            if dist.get_rank() == 0:
                dist.broadcast(value, 0)
        """,
        None,
    ),
    "only for some arguments": (
        """
        def share(values, often):
            if often(values):
                dist.barrier()
        """,
        None,
    ),
    "a message": (
        """
        def share(value):
            dist.send(value, 1)
        """,
        None,
    ),
    "for members of a group that is not an argument": (
        """
        def share(value):
            dist.all_reduce(value, group=elsewhere.group())
        """,
        None,
    ),
}


@pytest.mark.parametrize("name", DERIVED)
def test_a_function_is_summarized_if_all_ranks_that_call_it_enter_a_collective(name):
    text, expected = DERIVED[name]
    source = "import torch.distributed as dist\nimport elsewhere\n" + textwrap.dedent(text)
    modules = modules_from_sources({"library": ("library.py", source)})
    derived = {
        function.name: (call.enters, call.agrees, call.unless)
        for function, call in derive_summaries.derive(modules).items()
    }
    assert derived.get("share") == expected


def test_objects_of_many_calls_keep_the_group_of_their_own():
    """A library constructs its wrapper with many combinations of flags."""
    flags = [f"    Wrapper(dist.new_group([{n}]), {n % 2 == 0}, {n % 3 == 0})" for n in range(8)]
    program = """
        def share(value, group=None):
            Wrapper(group, value).share(value)

        class Wrapper:
            def __init__(self, group, *flags):
                self.group = group

            def share(self, value):
                dist.all_reduce(value, group=self.group)
    """
    source = "\n".join(["import torch.distributed as dist", "def others():", *flags])
    source += "\n" + textwrap.dedent(program)
    derived = derive_summaries.derive(modules_from_sources({"library": ("library.py", source)}))
    assert "share" in {function.name for function in derived if function.owner is None}


HEAD = "import torch.distributed as dist\nimport torch.distributed.checkpoint as dcp\nfrom accelerate import Accelerator, PartialState\n\n\ndef run(state):\n"
CALLS = {
    "dcp.save(state, checkpoint_id='x')": "rank-guarded-sharded-io",
    "dcp.save(state, checkpoint_id='x', no_dist=True)": None,
    "dcp.save(state, checkpoint_id='x', no_dist=state.alone)": None,
    "dcp.load(state, no_dist=False)": "rank-guarded-sharded-io",
    "Accelerator().wait_for_everyone()": "rank-guarded-collective",
    "with PartialState().main_process_first():\n            print(state)": "rank-guarded-collective",
}


@pytest.mark.parametrize("call", CALLS)
def test_the_interpreter_reads_the_summaries(tmp_path, call):
    path = tmp_path / "train.py"
    path.write_text(f"{HEAD}    if dist.get_rank() == 0:\n        {call}\n")
    rules = [found.rule for found in lint_paths([path]).findings]
    assert rules == ([CALLS[call]] if CALLS[call] else [])
    path.write_text(f"{HEAD}    if state:\n        {call}\n")
    assert not lint_paths([path]).findings


def test_tables_typed_by_hand_come_first():
    hand = library.METHODS["accelerate.Accelerator"]["gather_for_metrics"]
    assert hand.agrees == "return"
    assert "fully_shard" not in {exported.call.name for exported in load_summaries().functions}


def test_every_summarized_function_exists():
    """As far as the library is installed."""
    summaries = load_summaries()
    for home, name in {
        (name.rpartition(".")[0], name.rpartition(".")[2])
        for exported in (*summaries.functions, *summaries.classes)
        for name in exported.names
    }:
        assert home.partition(".")[0] in summaries.versions
        assert name.isidentifier()
    assert all(
        flag in call.parameters
        for exported in summaries.classes
        for call in exported.methods
        for flag in call.unless
    )


@pytest.mark.slow
def test_the_stored_summaries_are_those_of_the_installed_version():
    (metrics,) = (each for each in derive_summaries.LIBRARIES if each.name == "torchmetrics")
    stored, now = load_summaries(), derive_summaries.library_summaries([metrics])
    if stored.versions["torchmetrics"] != now.versions.get("torchmetrics"):
        pytest.skip("another version of torchmetrics is installed")
    assert now.functions == tuple(
        each for each in stored.functions if each.modules[0].startswith("torchmetrics")
    )


def test_an_annotation_that_a_method_returns_its_instance_is_believed():
    source = "class Metric:\n    def to(self, device) -> 'Metric': ...\n    def get(self) -> int: ...\n    @classmethod\n    def make(cls) -> 'Self': ...\n"
    (module,) = modules_from_sources({"m": ("m.py", source)}).values()
    cls = module.names["Metric"]
    returning = [
        name for name, method in cls.methods.items() if derive_summaries.returns_self(cls, method)
    ]
    assert returning == ["to"]


@pytest.mark.parametrize(
    ("imports", "statement", "column"),
    [
        ("import horovod.torch as hvd", "if hvd.rank() == 0:\n    hvd.allreduce(1)", 5),
        (
            "import horovod.torch as hvd\noptimizer = hvd.DistributedOptimizer(None)",
            "if hvd.local_rank() == 0:\n    optimizer.step()",
            5,
        ),
        (
            "import torch_xla.core.xla_model as xm",
            "if xm.is_master_ordinal():\n    xm.rendezvous('saved')",
            5,
        ),
        (
            "import torch_xla.core.xla_model as xm\nimport torch_xla.runtime as xr",
            "if xr.global_ordinal() == 0:\n    xm.save({}, 'x')",
            5,
        ),
        (
            "import deepspeed, torch.distributed as dist\nfrom deepspeed.utils import safe_get_full_grad",
            "if dist.get_rank() == 0:\n    print(safe_get_full_grad(1))",
            11,
        ),
    ],
)
def test_collectives_that_are_typed_by_hand(tmp_path, imports, statement, column):
    """Of libraries that are not installed, or behind dynamic attributes."""
    path = tmp_path / "train.py"
    path.write_text(f"{imports}\n\n{statement}\n")
    assert [found.column for found in lint_paths([path]).findings] == [column]
