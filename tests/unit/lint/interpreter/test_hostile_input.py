"""Cyclic, exponential or extremely nested programs: analysis terminates with its finding."""

import pytest

from holdfast.lint.run import lint_paths
from tests.unit.lint.programs import program_from_sources

HEAD = "import torch.distributed as dist\n"
GUARD = "if dist.get_rank() == 0:\n    "

CIRCLES = {
    "two functions": "def a(n):\n    b(n)\n    dist.barrier()\ndef b(n):\n    a(n)\n"
    + GUARD
    + "a(1)\n",
    "a decorator": "def again(f):\n    @again\n    def g():\n        return g() or f()\n    return g\n"
    "@again\ndef x():\n    dist.barrier()\n" + GUARD + "x()\n",
    "a property": "class P:\n    @property\n    def p(self):\n        dist.barrier()\n        return self.p\n"
    "    def __getattr__(self, name):\n        return getattr(self, name)\n" + GUARD + "P().p\n",
    "bases": "class A(B):\n    pass\nclass B(A):\n    def f(self):\n        dist.barrier()\n"
    "class C(C):\n    pass\nC().x()\n" + GUARD + "A().f()\n",
    "attributes": "class A:\n    def f(self, kw):\n        d = self.__dict__ if kw else {'a': 1}\n"
    "        d.update({'b': self})\n        self.__dict__.update(d)\nA().f({})\n"
    + GUARD
    + "dist.barrier()\n",
    "values": "d = {}\nd['d'] = d\nl = [d]\nl.append(l)\nfor x in l:\n    l.append(x)\n"
    + GUARD
    + "dist.barrier()\n",
}
DOUBLED = {
    "calls": "def f0():\n    dist.barrier()\n"
    + "".join(f"def f{n}():\n    f{n - 1}()\n    f{n - 1}()\n" for n in range(1, 36))
    + GUARD
    + "f35()\n",
    "loops": "".join("    " * n + f"for a{n} in x:\n" for n in range(18))
    + "    " * 18
    + "pass\n"
    + GUARD
    + "dist.barrier()\n",
    "handlers": "".join("    " * n + "try:\n" for n in range(18))
    + "    " * 18
    + "pass\n"
    + "".join(
        "    " * n + "except OSError:\n" + "    " * n + "    pass\n" for n in reversed(range(18))
    )
    + GUARD
    + "dist.barrier()\n",
    "an expression": "x = "
    + "+".join(["dist.get_rank()"] * 900)
    + "\nif x == 0:\n    dist.barrier()\n",
    "a file of 50,000 lines": "pass\n" * 50_000 + GUARD + "dist.barrier()\n",
}


@pytest.mark.parametrize(
    "text", [pytest.param(text, id=name) for name, text in (CIRCLES | DOUBLED).items()]
)
def test_analysis_terminates_and_finds_the_guard(text):
    divergences = program_from_sources({"main": ("main.py", HEAD + text)}).analyze()
    assert "branch" in {item.kind for item in divergences}


def test_cyclic_exports_terminate():
    files = {
        "a": ("a.py", "from b import *\nfrom b import thing, Base\n"),
        "b": (
            "b.py",
            "from a import *\nfrom a import thing, Base\nthing()\nclass Base(Base):\n    x = 1\n",
        ),
        "main": ("main.py", f"{HEAD}from a import thing\nthing()\n{GUARD}dist.barrier()\n"),
    }
    assert [divergence.kind for divergence in program_from_sources(files).analyze()] == ["branch"]


def test_the_body_of_a_lambda_is_no_list_of_statements(tmp_path):
    """Calls whose surroundings are searched, directly in a lambda."""
    file = tmp_path / "train.py"
    file.write_text(
        "import torch, torch.distributed as dist\n"
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "dist.init_process_group('gloo')\n"
        "model = DDP(torch.nn.Linear(2, 2))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "step = lambda: optimizer.step()\n"
        "send = lambda x: dist.broadcast(x, 0)\n"
        "group = lambda ranks: dist.new_group(ranks)\n"
        "if dist.get_rank() == 0:\n"
        "    step()\n"
        "send(torch.ones(2)); group([0, 1])\n"
    )
    assert [each.finding.subject.line for each in lint_paths([file]).findings] == [6]
