"""Files that import each other are one program, whichever way they say it; what is silent is not run."""

from pathlib import Path

import pytest

from holdfast.facts.code import library
from holdfast.facts.code.components import components, is_loud
from holdfast.facts.code.reading import File, gather


def files(**texts):
    return [
        File(Path(f"{name.replace('.', '/')}.py"), Path(), name.removesuffix(".__init__"), text.encode())
        for name, text in texts.items()
    ]


def together(**texts):
    return [sorted(file.name for file in part) for part in components(files(**texts))]


@pytest.mark.parametrize(
    "text",
    [
        "import lib.comm",
        "import os, lib.comm as c",
        "from lib.comm import sync",
        "from lib import comm",
        "from lib import (\n    # which?\n    other,\n    comm,\n)",
        "def late():\n    from lib.comm import sync",
        "try:\n    import lib.comm\nexcept ImportError:\n    pass",
        "from lib.comm import *",
        "import comm",
        "from top.lib.comm import sync",
    ],
)
def test_an_import_links(text):
    apart = together(**{"train": text, "lib.comm": "", "alone": "import os"})
    assert (apart == [["lib.comm", "train"], ["alone"]]) is not text.startswith("from top")


@pytest.mark.parametrize("text", ["from . import comm", "from .comm import sync", "from ..lib.comm import sync"])
def test_a_relative_import_links(text):
    assert together(**{"lib.train": text, "lib.comm": ""}) == [["lib.comm", "lib.train"]]


def test_what_only_looks_alike_does_not_link():
    assert together(a='text = "import b"', b="import torch.comm", c="from . import torch_b") == [["a"], ["b"], ["c"]]


def test_links_go_on():
    assert together(a="import b", b="import c", c="", d="import c", e="") == [["a", "b", "c", "d"], ["e"]]


def test_of_two_with_one_name_the_one_beside_is_meant(tmp_path):
    for folder, text in (("one", "import main"), ("two", "")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "main.py").write_text("")
        (tmp_path / folder / "run.py").write_text(text)
    parts = components(gather([tmp_path]).files)
    assert [[file.path.name for file in part] for part in parts] == [["main.py", "run.py"], ["main.py"], ["run.py"]]


def test_a_variable_that_nobody_else_knows_links():
    assert together(a='import os\nos.environ["NCCL_OWN"] = "1"', b='print(os.environ["NCCL_OWN"])', c="") == [
        ["a", "b"],
        ["c"],
    ]


def test_all_that_a_finding_begins_with_is_loud():
    roots = {name.partition(".")[0] for name in (*library.CALLS, *library.CLASSES)} - {"threading", "concurrent"}
    texts = [*(f"import {root}" for root in roots), *(f"x.{name}()" for name in library.DISTINCT)]
    texts += (f"self.{name}.barrier()" for name in library.NAMED)
    assert [text for text in (*texts, 'os.environ["NCCL_OWN"] = "1"') if not is_loud(files(a=text))] == []
    assert is_loud(files(a="", b="x.wait_for_everyone()"))
    assert not is_loud(files(a="import functools", b="def f(rank): return rank", c="menu.accelerator = 1"))
