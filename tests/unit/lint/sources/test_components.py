"""Files that import each other are one program; components without collectives are skipped."""

from pathlib import Path

import pytest

from holdfast.lint import library
from holdfast.lint.sources.components import connected_parts, find_links, mentions_collectives
from holdfast.lint.sources.files import SourceFile, gather_files


def files(**texts):
    return [
        SourceFile(
            Path(f"{name.replace('.', '/')}.py"),
            Path(),
            name.removesuffix(".__init__"),
            text.encode(),
        )
        for name, text in texts.items()
    ]


def split_components(files):
    """Return the connected components of the import graph, in the order of their first files."""
    parts = connected_parts(range(len(files)), find_links(files))
    return [[files[at] for at in part] for part in parts]


def together(**texts):
    return [sorted(file.name for file in part) for part in split_components(files(**texts))]


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


@pytest.mark.parametrize(
    "text", ["from . import comm", "from .comm import sync", "from ..lib.comm import sync"]
)
def test_a_relative_import_links(text):
    assert together(**{"lib.train": text, "lib.comm": ""}) == [["lib.comm", "lib.train"]]


def test_similar_text_does_not_link():
    assert together(a='text = "import b"', b="import torch.comm", c="from . import torch_b") == [
        ["a"],
        ["b"],
        ["c"],
    ]


def test_links_are_transitive():
    assert together(a="import b", b="import c", c="", d="import c", e="") == [
        ["a", "b", "c", "d"],
        ["e"],
    ]


def test_a_name_means_the_module_of_the_same_folder(tmp_path):
    for folder, text in (("one", "import main"), ("two", "")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "main.py").write_text("")
        (tmp_path / folder / "run.py").write_text(text)
    parts = split_components(gather_files([tmp_path]).files)
    assert [[file.path.name for file in part] for part in parts] == [
        ["main.py", "run.py"],
        ["main.py"],
        ["run.py"],
    ]


def test_an_unknown_environment_variable_links():
    assert together(
        a='import os\nos.environ["NCCL_OWN"] = "1"', b='print(os.environ["NCCL_OWN"])', c=""
    ) == [
        ["a", "b"],
        ["c"],
    ]


def test_every_table_name_mentions_collectives():
    roots = {name.partition(".")[0] for name in (*library.CALLS, *library.CLASSES)} - {
        "threading",
        "concurrent",
    }
    texts = [
        *(f"import {root}" for root in roots),
        *(f"x.{name}()" for name in library.UNIQUE_METHODS),
    ]
    texts += (f"self.{name}.barrier()" for name in library.RECEIVER_NAMES)
    assert [
        text
        for text in (*texts, 'os.environ["NCCL_OWN"] = "1"')
        if not mentions_collectives(files(a=text))
    ] == []
    assert mentions_collectives(files(a="", b="x.wait_for_everyone()"))
    assert not mentions_collectives(
        files(a="import functools", b="def f(rank): return rank", c="menu.accelerator = 1")
    )
