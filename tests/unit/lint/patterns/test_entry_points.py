"""A finding about files needs a script that runs on several ranks and reaches the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.lint.options import LintOptions
from holdfast.lint.run import lint_paths

#: A class that asks for the rank, as it also trains; ``predict`` makes a folder.
_TRAINER = """\
import os

import torch
import torch.distributed as dist


class Loop:
    def __init__(self, model):
        self.model = model
        self.rank = dist.get_rank() if dist.is_initialized() else 0

    def run(self):
        dist.barrier()

    def predict(self, folder):
        if not os.path.exists(folder):
            os.makedirs(folder)
        torch.save(self.model(1), os.path.join(folder, "all.pt"))
        if dist.is_initialized():
            dist.barrier()
"""
_SETUP = """\
import torch.distributed as dist


def start():
    dist.init_process_group("nccl")


def read_settings(path):
    return open(path).read()
"""
_INFER = """\
from package.loop import Loop
from package.setup import read_settings


def main():
    loop = Loop(read_settings("model.yaml"))
    loop.predict("results")


if __name__ == "__main__":
    main()
"""
_TRAIN = """\
from package.loop import Loop
from package.setup import start


def main():
    start()
    loop = Loop(None)
    loop.run()


if __name__ == "__main__":
    main()
"""


def _found(folder: Path, files: dict[str, str], *, strict: bool = False) -> set[str]:
    """Return the rules of the findings about files, with file and line."""
    for name, text in {"package/__init__.py": "", **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    result = lint_paths([folder], LintOptions(strict=strict))
    return {
        f"{Path(item.finding.subject.file or '').name}:{item.finding.subject.line}"
        for item in result.findings
        if item.rule in ("path-race", "written-by-all-ranks")
    }


_FILES = {
    "package/loop.py": _TRAINER, "package/setup.py": _SETUP,
    "tools/infer.py": _INFER, "tools/train.py": _TRAIN,
}  # fmt: skip
#: What is found in ``predict`` if it may run on several ranks.
_RACES = {"loop.py:17", "loop.py:18"}


def test_a_function_that_only_a_script_of_one_process_calls_has_no_race(tmp_path: Path) -> None:
    """The script imports a file that can start ranks, but does not call what starts them."""
    assert not _found(tmp_path, _FILES)


def test_strict_reports_it(tmp_path: Path) -> None:
    """``--strict`` keeps findings that no script of several ranks is known to reach."""
    assert _found(tmp_path, _FILES, strict=True) == _RACES


@pytest.mark.parametrize(
    "started",
    [
        pytest.param(
            _INFER.replace("read_settings\n", "read_settings, start\n").replace(
                "    loop =", "    start()\n    loop ="
            ),
            id="through a function of the package",
        ),
        pytest.param(
            _INFER.replace("def main", "from accelerate import Accelerator\n\n\ndef main").replace(
                "    loop =", "    Accelerator()\n    loop ="
            ),
            id="an Accelerator",
        ),
        pytest.param(
            _INFER.replace("    loop =", "    print(os.environ['LOCAL_RANK'])\n    loop ="),
            id="a variable of the launcher",
        ),
    ],
)
def test_a_script_that_starts_ranks_has_it(tmp_path: Path, started: str) -> None:
    """What starts ranks may be in the script, or in a function that it calls."""
    assert _found(tmp_path, {**_FILES, "tools/infer.py": started}) == _RACES


def test_a_function_that_no_script_calls_is_offered_to_users(tmp_path: Path) -> None:
    """A library's callers are unknown."""
    files = {name: text for name, text in _FILES.items() if name != "tools/infer.py"}
    assert _found(tmp_path, files) == _RACES


def test_a_process_group_of_one_is_no_start(tmp_path: Path) -> None:
    """``world_size=1`` leaves a program with one process, and so does an assertion."""
    alone = _INFER.replace(
        "from package.setup", "import torch.distributed as dist\nfrom package.setup"
    )
    started = alone.replace(
        "    loop =", "    dist.init_process_group('gloo', world_size=1, rank=0)\n    loop ="
    )
    assert not _found(tmp_path / "one", {**_FILES, "tools/infer.py": started})
    asserted = alone.replace(
        "    loop =", "    assert not args.distributed\n    print(dist.get_rank())\n    loop ="
    )
    assert not _found(tmp_path / "two", {**_FILES, "tools/infer.py": asserted})


def test_a_file_left_over_beside_used_ones_has_no_race(tmp_path: Path) -> None:
    """A copy that no file mentions is not run; nor is a function that is not, beside used ones."""
    copy = _TRAINER.replace("Loop", "OldLoop")
    files = {**_FILES, "package/old_copy.py": copy}
    assert not _found(tmp_path / "file", files)
    unused = _SETUP + (
        "\n\ndef save_all(folder, state):\n    dist.barrier()\n"
        "    with open(folder + '/all.txt', 'w') as out:\n        out.write(state)\n"
    )
    assert not _found(tmp_path / "function", {**_FILES, "package/setup.py": unused})


def test_a_hook_counts_where_its_class_is_made(tmp_path: Path) -> None:
    """A method that nothing calls by name is called by a library that gets the object."""
    hook = _TRAINER.replace("def predict(self, folder)", "def on_predict_end(self, folder)")
    infer = _INFER.replace('    loop.predict("results")', "    print(loop)")
    assert not _found(
        tmp_path / "one",
        {**_FILES, "package/loop.py": hook, "tools/infer.py": infer, "tools/train.py": ""},
    )
    assert (
        _found(tmp_path / "many", {**_FILES, "package/loop.py": hook, "tools/infer.py": infer})
        == _RACES
    )
