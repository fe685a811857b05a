"""Scripts that share no imports, and tests, are programs of their own beside the package."""

import pytest

from holdfast.lint import analysis
from holdfast.lint.run import lint_paths
from holdfast.lint.sources.files import gather_files
from holdfast.lint.sources.separate_programs import split_programs

ENGINE = """import torch.distributed as dist


class Engine:
    def __init__(self, saves):
        self.saves = saves

    def save(self):
        if self.saves:
            dist.barrier()
"""
SCRIPT = """import torch.distributed as dist
from library import Engine

Engine({saves}).save()
"""


def write(folder, **texts):
    for name, text in texts.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def programs(folder):
    """Return each program's own files, and those that it imports."""
    split = split_programs(gather_files([folder]).files)
    return [
        tuple(
            sorted(
                str(file.path.relative_to(folder).with_suffix(""))
                for file in program.files
                if (str(file.path) in program.owned) is own
            )
            for own in (True, False)
        )
        for program in split
    ]


@pytest.fixture
def library(tmp_path):
    write(
        tmp_path, **{"library/__init__": "from .engine import Engine\n", "library/engine": ENGINE}
    )
    return tmp_path


def test_scripts_of_one_package_are_separate_programs(library):
    write(library, train=SCRIPT.format(saves="True"), **{"tools/export": "import library\n"})
    assert programs(library) == [
        (["library/__init__", "library/engine"], []),
        (["train"], ["library/__init__", "library/engine"]),
        (["tools/export"], ["library/__init__", "library/engine"]),
    ]


def test_a_script_and_its_package_are_one_program_and_tests_another(library):
    write(
        library,
        train=SCRIPT.format(saves="True"),
        **{"tests/common": "", "tests/test_engine": "import library, common\n"},
    )
    assert programs(library) == [
        (["library/__init__", "library/engine", "train"], []),
        (["tests/common", "tests/test_engine"], ["library/__init__", "library/engine"]),
    ]


def test_tests_do_not_join_scripts(tmp_path):
    write(
        tmp_path,
        one="",
        two="",
        **{"checks/tests/common": "import one\n", "checks/tests/test_all": "import common, two\n"},
    )
    assert programs(tmp_path) == [
        (["one"], []),
        (["two"], []),
        (["checks/tests/common", "checks/tests/test_all"], ["one", "two"]),
    ]


def test_folders_above_all_files_do_not_make_them_tests(tmp_path):
    write(tmp_path, **{"tests/helper": "", "tests/train": "import helper\n"})
    assert programs(tmp_path) == [(["tests/helper", "tests/train"], [])]


def test_what_one_script_passes_is_not_true_for_another(library):
    write(
        library,
        one=SCRIPT.format(saves="dist.get_rank() == 0"),
        two=SCRIPT.format(saves="True") + "Engine(True).saves = False\n",
    )
    (found,) = lint_paths([library]).findings
    assert found.finding.subject.file == str(library / "library/engine.py")
    (library / "one.py").unlink()
    assert not lint_paths([library]).findings


def test_tests_change_no_finding_of_the_package(library):
    write(library, **{"tests/test_engine": SCRIPT.format(saves="dist.get_rank() == 0")})
    result = lint_paths([library])
    assert (len(result.findings), result.files) == (0, 3)
    write(
        library,
        **{
            "tests/test_engine": SCRIPT.format(saves="dist.get_rank() == 0")
            + "if dist.get_rank() == 0:\n    dist.barrier()\n"
        },
    )
    (found,) = lint_paths([library]).findings
    assert found.finding.subject.file == str(library / "tests/test_engine.py")


def test_modules_of_one_name_are_those_nearest_to_the_importing_file(tmp_path):
    """As they are if each program is started in its own folder."""
    helper = "import torch.distributed as dist\n\n\ndef agree():\n    {body}\n"
    script = "import torch.distributed as dist\nfrom common.helper import agree\nif dist.get_rank() == 0:\n    agree()\n"
    for name, body in (("one", "pass"), ("two", "dist.barrier()")):
        write(
            tmp_path,
            **{
                f"{name}/common/__init__": "",
                f"{name}/common/helper": helper.format(body=body),
                f"{name}/scripts/train": script,
            },
        )
    (found,) = lint_paths([tmp_path]).findings
    assert found.finding.subject.file == str(tmp_path / "two/scripts/train.py")


def test_a_changed_script_is_analyzed_without_the_others(library, tmp_path, monkeypatch):
    monkeypatch.setattr(analysis, "_MIN_CACHED_COST", 0)
    for name in ("one", "two", "three"):
        write(library, **{name: SCRIPT.format(saves="True")})
    analyzed = []
    run = analysis._run_task
    monkeypatch.setattr(
        analysis,
        "_run_task",
        lambda task: analyzed.append(sorted(task.program.owned)) or run(task),
    )
    cache = tmp_path.with_name("cache")
    lint_paths([library], cache=cache)
    assert len(analyzed) == 4
    write(library, two=SCRIPT.format(saves="False"))
    lint_paths([library], cache=cache)
    assert analyzed[4:] == [[str(library / "two.py")]]


SYNCHRONIZE = "import torch.distributed as dist\n\n\ndef synchronize():\n    dist.barrier()\n"
USE = "import torch.distributed as dist\nfrom {home} import synchronize\n\nif dist.get_rank() == 0:\n    synchronize()\n"


@pytest.mark.parametrize(
    ("script", "home", "file"),
    [
        ("train", "models.parts.comm", "models/parts/comm"),
        ("scripts/train", "models.comm", "models/comm"),
        ("package/parts/train", "package.models.comm", "package/models/comm"),
        ("package/parts/train", "..models.comm", "package/models/comm"),
        ("package/scripts/train", "comm", "package/scripts/comm"),
    ],
)
def test_imports_are_found_in_folders_without_init(tmp_path, script, home, file):
    write(
        tmp_path,
        **{
            script: USE.format(home=home),
            file: SYNCHRONIZE,
            "other/comm": "synchronize = print\n",
            "package/__init__": "",
        },
    )
    (found,) = lint_paths([tmp_path]).findings
    assert found.finding.subject.file == str(tmp_path / f"{script}.py")


LARGE = "#" * (1 << 17) + "\n"


@pytest.mark.parametrize(
    ("script", "in_package", "imports"),
    [
        ("import library\nlibrary.paint(steps=20)\n", "dist.barrier()", False),
        ("import library\nloss.backward()\n", "print()", False),
        ("import library\nloss.backward()\n", "DistributedDataParallel(model)", True),
        ("import library\nif rank == 0:\n    library.save()\n", "dist.barrier()", True),
        ("import library\nif rank == 0:\n    library.save()\n", "dist.broadcast(x, 0)", True),
        ("import library\nif rank == 0:\n    library.save()\n", "print()", False),
    ],
)
def test_scripts_of_one_process_are_analyzed_without_a_large_package(
    tmp_path, script, in_package, imports
):
    """A package with many examples is not analyzed again for each of them."""
    write(
        tmp_path,
        **{
            "library/__init__": f"import library.large, library.small\n{in_package}\n",
            "library/small": "",
            "library/large": LARGE,
            "examples/one": script,
            "examples/two": "import library\n",
        },
    )
    imported = {tuple(own): others for own, others in programs(tmp_path)}
    assert bool(imported["examples/one",]) is imports
    assert not imported["examples/two",]


def test_a_script_is_analyzed_with_the_small_package_that_it_imports(library):
    """What it passes to the package counts, as no file is missing."""
    write(library, one="import library\n", two="import library\n")
    assert programs(library)[1:] == [
        (["one"], ["library/__init__", "library/engine"]),
        (["two"], ["library/__init__", "library/engine"]),
    ]
