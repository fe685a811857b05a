"""``holdfast lint``: its output in each format, and its exit status."""

import json
import os
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import click
import pytest
import yaml
from click.testing import CliRunner

from holdfast.cli import lint, main, root

GUARDED = """import torch.distributed as dist


def report(value):
    if dist.get_rank() == 0:
        dist.all_reduce(value){comment}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(GUARDED.format(comment=""))
    return path


def run(*words):
    return CliRunner().invoke(root, ["lint", *map(str, words)], standalone_mode=False)


def test_a_finding_is_one_line_and_sets_the_exit_status(file):
    result = run(file)
    assert result.return_value == 1
    assert result.stdout.startswith(
        f"{file}:6:9: SYNC004 rank-guarded-collective: all_reduce is entered only "
    )
    assert "1 finding in 1 file, 7 lines" in result.stderr


def test_explain_shows_the_path_and_the_remedy(file):
    output = run(file, "--explain").stdout
    assert f"{file}:5 | if dist.get_rank() == 0:\n" in output
    assert " | ^^^^^^^^^^^^^^^^^^^^^^^ condition\n" in output
    assert " |    ^^^^^^^^^^^^^^^ differs (rank)\n" in output
    assert "→ " in output
    assert "holdfast explain SYNC004" in output


def test_cached_findings_are_explained(file, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert run(file, "--explain").stdout == run(file, "--explain").stdout


@pytest.mark.parametrize(
    "comment",
    [
        "  # noqa",
        "  # noqa: SYNC004",
        "  # NOQA: E501, rank-guarded-collective",
        "  # noqa: SYNC004 - so meant",
    ],
)
def test_suppressed_findings_are_counted(file, comment):
    file.write_text(GUARDED.format(comment=comment))
    result = run(file)
    assert result.return_value == 0
    assert "No findings (1 suppressed)" in result.stderr
    file.write_text(GUARDED.format(comment="  # noqa: E501"))
    assert run(file).return_value == 1


def test_rules_are_selected_by_name_code_and_family(file):
    assert run(file, "--select", "SYNC").return_value == 1
    assert run(file, "--select", "uneven-loop,order-divergence").return_value == 0
    assert run(file, "--ignore", "SYNC004").return_value == 0


def test_an_unknown_rule_is_rejected_with_a_suggestion(file, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["lint", "--select", "rank-guarded-colective", str(file)])
    assert "rank-guarded-collective" in capsys.readouterr().err


def test_machine_readable_formats(file):
    document = json.loads(run(file, "--json").stdout)
    assert (document["command"], document["rules"], document["files"]) == (
        "lint",
        ["rank-guarded-collective"],
        1,
    )
    assert document["findings"][0]["subject"]["line"] == 6
    assert document["findings"][0]["subject"]["column"] == 9
    (annotation,) = run(file, "--output-format", "github").stdout.splitlines()
    assert annotation.startswith(
        f"::error file={file},line=6,col=9,title=SYNC004 rank-guarded-collective::"
    )
    log = json.loads(run(file, "--output-format", "sarif").stdout)
    (result,) = log["runs"][0]["results"]
    assert (log["version"], result["ruleIndex"]) == ("2.1.0", 0)
    assert result["ruleId"] == "rank-guarded-collective"
    (described,) = log["runs"][0]["tool"]["driver"]["rules"]
    assert (described["id"], described["properties"]["tags"]) == (result["ruleId"], ["SYNC004"])
    flow = result["codeFlows"][0]["threadFlows"][0]["locations"]
    lines = [step["location"]["physicalLocation"]["region"]["startLine"] for step in flow]
    assert lines[-1] == 6
    assert (
        [each["physicalLocation"]["region"]["startLine"] for each in result["relatedLocations"]]
        == lines[:-1]
        != []
    )
    assert json.loads(run(file, "--json").stdout)["findings"][0]["rule"] == result["ruleId"]
    assert all(described[key]["text"] for key in ("shortDescription", "fullDescription", "help"))
    assert result["locations"][0]["physicalLocation"]["region"] == {
        "startLine": 6,
        "startColumn": 9,
    }
    suite = ET.fromstring(run(file, "--output-format", "junit").stdout)
    assert (suite.get("failures"), suite[0][0].get("type")) == ("1", "error")


def test_no_findings_is_empty_in_every_format(tmp_path):
    (tmp_path / "fine.py").write_text("x = 1\n")
    for form in ("text", "github"):
        result = run(tmp_path, "--output-format", form)
        assert (result.return_value, result.stdout) == (0, "")
    assert not json.loads(run(tmp_path, "--output-format", "sarif").stdout)["runs"][0]["results"]
    assert ET.fromstring(run(tmp_path, "--output-format", "junit").stdout).get("failures") == "0"


def test_notebook_findings_have_cell_and_line(tmp_path):
    path = tmp_path / "train.ipynb"
    cells = [
        "%matplotlib inline\nimport torch.distributed as dist",
        "rank = dist.get_rank()\nif rank == 0:\n    dist.barrier()",
    ]
    path.write_text(
        json.dumps({"cells": [{"cell_type": "code", "source": each} for each in cells]})
    )
    output = run(path, "--explain").stdout
    assert output.startswith(f"{path}:cell 2:line 3:5: SYNC004 rank-guarded-collective")
    assert f"{path}:cell 2:line 1 | rank = dist.get_rank()\n" in output
    (annotation,) = run(path, "--output-format", "github").stdout.splitlines()
    assert f"file={path},line=1," in annotation
    assert "::cell 2, line 3: barrier" in annotation
    (result,) = json.loads(run(path, "--output-format", "sarif").stdout)["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == str(path)
    cells[1] += "  # noqa"
    path.write_text(
        json.dumps({"cells": [{"cell_type": "code", "source": each} for each in cells]})
    )
    assert "1 suppressed" in run(path).stderr


def test_cells_are_in_numeric_order(tmp_path):
    code = GUARDED.format(comment="").splitlines(keepends=True)
    cells = [{"cell_type": "code", "source": code}] + [
        {"cell_type": "code", "source": ["if dist.get_rank() == 0:\n", "    dist.barrier()\n"]}
        for _ in range(10)
    ]
    path = tmp_path / "long.ipynb"
    path.write_text(
        json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    )
    cells_named = [line.split("cell ")[1].split(":")[0] for line in run(path).stdout.splitlines()]
    assert cells_named == sorted(cells_named, key=int)
    assert len(cells_named) == 11


def test_standard_input_is_linted_under_the_file_name_of_the_editor(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "helper.py").write_text(
        "import torch.distributed as dist\n\n\ndef all_done():\n    dist.barrier()\n"
    )
    text = "import torch.distributed as dist\nfrom helper import all_done\nif dist.get_rank() == 0:\n    all_done()\n"
    words = ["-", "--stdin-filename", "train.py", "helper.py"]
    result = CliRunner().invoke(root, ["lint", *words], input=text, standalone_mode=False)
    assert result.stdout.startswith("train.py:4:5: SYNC004")
    (tmp_path / "train.py").write_text("x = 1\n")
    words = [".", "-", "--stdin-filename", str(tmp_path / "train.py")]
    assert (
        CliRunner().invoke(root, ["lint", *words], input=text, standalone_mode=False).return_value
        == 1
    )
    result = CliRunner().invoke(
        root, ["lint", "-"], input=GUARDED.format(comment=""), standalone_mode=False
    )
    assert (result.stdout[:12], result.return_value) == ("-:6:9: SYNC0", 1)
    assert (
        CliRunner().invoke(root, ["lint", "-"], input=b"\0", standalone_mode=False).return_value
        == 2
    )
    assert "requires `-` (standard input) among the paths" in str(
        run("--stdin-filename", "a.py").exception
    )


def test_statistics_count_by_rule(file):
    file.with_name("other.py").write_text(GUARDED.format(comment=""))
    assert run(file.parent, "--statistics").stdout == "     2  SYNC004   rank-guarded-collective\n"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("trian.py", "did you mean {folder}/train.py?"),
        ("train", "did you mean {folder}/train.py?"),
        ("modles/net.py", "did you mean {folder}/models/net.py?"),
        ("nowhere/at/all.py", "check the path; it is relative to the current folder"),
    ],
)
def test_a_named_path_that_does_not_exist_is_an_error(file, capsys, name, hint):
    folder = file.parent
    (folder / "models").mkdir()
    with pytest.raises(SystemExit, match="2"):
        main(["lint", str(file), str(folder / name)])
    output = capsys.readouterr()
    assert output.err == (
        f"holdfast: cannot open {folder / name}: there is no such file; "
        f"{hint.format(folder=folder)}\n"
    )
    assert output.out == ""


def test_a_named_path_that_cannot_be_read_is_an_error(file):
    file.with_name("loop.py").symlink_to("loop.py")
    result = run(file.with_name("loop.py"))
    assert "too many levels of symbolic links" in str(result.exception)


def test_control_characters_in_names_are_escaped(tmp_path):
    path = tmp_path / "a\x1b[2J\n.py"
    path.write_text(GUARDED.format(comment=""))
    output = run(tmp_path, "--explain").stdout
    assert "\x1b" not in output
    assert "\\x1b[2J" in output.splitlines()[0]


def test_undecodable_names_are_reported_in_every_format(tmp_path):
    path = os.fsencode(tmp_path) + b"/a\xff\x1b.py"
    Path(os.fsdecode(path)).write_text(GUARDED.format(comment=""))
    assert "a\\udcff\\x1b.py:6:9: SYNC004" in run(tmp_path).stdout
    assert "a\\udcff\\x1b.py,line=6,col=9" in run(tmp_path, "--output-format", "github").stdout
    assert "a%FF%1B.py" in run(tmp_path, "--output-format", "sarif").stdout
    assert (
        ET.fromstring(run(tmp_path, "--output-format", "junit").stdout)[0]
        .get("classname")
        .endswith("x1b.py")
    )
    assert json.loads(run(tmp_path, "--json").stdout)["files"] == 1


EPOCHS = """import torch
from torch.utils.data import DataLoader, DistributedSampler

sampler = DistributedSampler([1])
loader = DataLoader([1], sampler=sampler)
for epoch in range(3):
    for batch in loader:
        print(batch)
"""


def test_fix_applies_the_shown_diff_and_lints_again(file):
    file.write_text(EPOCHS)
    result = run(file, "--diff")
    assert "+    sampler.set_epoch(epoch)" in result.stdout.splitlines()
    assert (result.return_value, file.read_text()) == (1, EPOCHS)
    result = run(file, "--fix")
    assert f"{file}: 1 line fixed" in result.stderr
    assert "No findings" in result.stderr
    assert "    sampler.set_epoch(epoch)\n" in file.read_text()
    assert (run(file, "--diff").stdout, run(file, "--diff").return_value) == ("", 0)


def test_strict_shows_undecidable_findings_as_advice(file):
    file.write_text(
        "import torch.distributed as dist\n\n\n"
        "def train(batches, config):\n"
        "    for batch in batches:\n"
        "        dist.all_reduce(batch)\n"
        "    if config.done:\n"
        "        return\n"
        "    dist.barrier()\n"
    )
    assert run(file).stdout == ""
    result = run(file, "--strict")
    assert [line.split(": ")[1] for line in result.stdout.splitlines()] == [
        "SYNC002 undecided",
        "SYNC002 undecided",
    ]
    assert "`for batch in batches` enters all_reduce at train.py:6" in result.stdout
    assert "`return` under `if config.done` skips barrier" in result.stdout
    assert result.return_value == 0
    file.with_name("pyproject.toml").write_text("[tool.holdfast.lint]\nstrict = true\n")
    assert run(file).stdout == result.stdout
    assert run(file, "--no-strict").stdout == ""


def test_the_pre_commit_hook_calls_an_existing_command():
    (hook,) = yaml.safe_load((Path(__file__).parents[3] / ".pre-commit-hooks.yaml").read_text())
    program, name, *words = hook["entry"].split()
    assert (hook["id"], program, name) == ("holdfast-lint", "holdfast", "lint")
    assert not hook["pass_filenames"], "what did not change belongs to the program too"
    lint.command.make_context(name, words, parent=click.Context(root, **root.context_settings))


HOSTILE = {
    "two.py": b"print 'hello'\n",
    "broken.py": b"def f(:\n",
    "null.py": b"x = 1\0\n",
    "utf16.py": "x = 'é'\n".encode("utf-16"),
    "deep.py": b"x = " + b"(" * 5000 + b")" * 5000,
    "broken.ipynb": b"{",
}


def test_unreadable_files_are_reported_and_the_others_are_linted(file):
    for name, content in HOSTILE.items():
        file.with_name(name).write_bytes(content)
    result = run(file.parent)
    assert result.stdout.startswith(f"{file}:6:9: SYNC004")
    for name in HOSTILE:
        assert re.search(rf"{re.escape(name)}(:\d+)?: skipped: ", result.stderr)
    assert result.return_value == 1
    file.unlink()
    assert run(file.parent).return_value == 0
    assert run(file.with_name("two.py")).return_value == 2


def test_missing_and_inaccessible_files_are_reported(file, monkeypatch):
    whole = Path.open

    def opened(path, *words, **named):
        if path.name in errors:
            raise errors[path.name]
        return whole(path, *words, **named)

    errors = {
        "gone.py": FileNotFoundError(2, "No such file"),
        "closed.py": PermissionError(13, "Permission denied"),
    }
    for name in errors:
        file.with_name(name).write_text("x = 1\n")
    monkeypatch.setattr(Path, "open", opened)
    result = run(file.parent)
    assert "gone.py: skipped: no such file" in result.stderr
    assert "closed.py: skipped: permission denied" in result.stderr
    assert "1 finding in 1 file" in result.stderr


def test_a_folder_without_python_has_no_findings(tmp_path):
    (tmp_path / "words.txt").write_text("x")
    result = run(tmp_path)
    assert (result.return_value, result.stdout) == (0, "")
    assert "No findings in 0 files, 0 lines" in result.stderr


TWICE = """import torch
import torch.distributed as dist


def train(model, batches):
    for batch in batches:
        model(batch).backward()
        dist.all_reduce(batch)
        torch.save({{"model": model.state_dict()}}, "last.pt"){comment}


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(torch.nn.Linear(4, 4), [])
"""


@pytest.mark.parametrize(
    ("words", "comment", "rule"),
    [
        ((), "", "DATA005 written-by-all-ranks"),
        (("--select", "nonatomic-save"), "", "CKPT002 nonatomic-save"),
        (("--ignore", "written-by-all-ranks"), "", "CKPT002 nonatomic-save"),
        ((), "  # noqa: DATA005", "CKPT002 nonatomic-save"),
    ],
)
def test_the_most_severe_enabled_finding_of_a_line_is_reported(tmp_path, words, comment, rule):
    path = tmp_path / "train.py"
    path.write_text(TWICE.format(comment=comment))
    result = run(path, *words)
    assert re.match(rf"{re.escape(str(path))}:9:\d+: {rule}:", result.stdout)
    assert "1 finding" in result.stderr
