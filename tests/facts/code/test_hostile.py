"""Programs that lead in circles, double themselves or are nested as no person would: they end, and say the same."""

import pytest

from holdfast.facts.code.programs import program

HEAD = "import torch.distributed as dist\n"
GUARD = "if dist.get_rank() == 0:\n    "

CIRCLES = {
    "two functions": "def a(n):\n    b(n)\n    dist.barrier()\ndef b(n):\n    a(n)\n" + GUARD + "a(1)\n",
    "a decorator": "def again(f):\n    @again\n    def g():\n        return g() or f()\n    return g\n"
    "@again\ndef x():\n    dist.barrier()\n" + GUARD + "x()\n",
    "a property": "class P:\n    @property\n    def p(self):\n        dist.barrier()\n        return self.p\n"
    "    def __getattr__(self, name):\n        return getattr(self, name)\n" + GUARD + "P().p\n",
    "bases": "class A(B):\n    pass\nclass B(A):\n    def f(self):\n        dist.barrier()\n"
    "class C(C):\n    pass\nC().x()\n" + GUARD + "A().f()\n",
    "values": "d = {}\nd['d'] = d\nl = [d]\nl.append(l)\nfor x in l:\n    l.append(x)\n" + GUARD + "dist.barrier()\n",
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
    + "".join("    " * n + "except OSError:\n" + "    " * n + "    pass\n" for n in reversed(range(18)))
    + GUARD
    + "dist.barrier()\n",
    "an expression": "x = " + "+".join(["dist.get_rank()"] * 900) + "\nif x == 0:\n    dist.barrier()\n",
    "a file of 50,000 lines": "pass\n" * 50_000 + GUARD + "dist.barrier()\n",
}


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in (CIRCLES | DOUBLED).items()])
def test_it_ends_and_the_guard_is_found(text):
    found = program({"main": ("main.py", HEAD + text)}).look()
    assert "branch" in {each.kind for each in found}


def test_modules_that_export_each_other_in_a_circle_end():
    files = {
        "a": ("a.py", "from b import *\nfrom b import thing, Base\n"),
        "b": (
            "b.py",
            "from a import *\nfrom a import thing, Base\nthing()\nclass Base(Base):\n    x = 1\n",
        ),
        "main": ("main.py", f"{HEAD}from a import thing\nthing()\n{GUARD}dist.barrier()\n"),
    }
    assert [each.kind for each in program(files).look()] == ["branch"]
