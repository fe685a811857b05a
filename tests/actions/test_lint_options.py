"""Which rules judge which files: options of the command, and [tool.holdfast.lint] of the nearest pyproject.toml."""

from pathlib import Path

import pytest

from holdfast.actions.lint.linting import lint
from holdfast.actions.lint.options import Pattern, configured, given
from holdfast.errors import BadValue, UnknownName

GUARDED = "import torch.distributed as dist\nif dist.get_rank() == 0:\n    dist.barrier()\n"


@pytest.fixture
def project(tmp_path):
    for name in ("a.py", "tests/b.py", "tests/deep/c.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(GUARDED)
    return tmp_path


def configure(folder, text):
    (folder / "pyproject.toml").write_text(f"[tool.holdfast.lint]\n{text}\n")


def files(paths, **options):
    return [Path(each.finding.subject.file).name for each in lint(paths, given(paths, **options)).claims]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ["a.py", "b.py", "c.py"]),
        ('exclude = ["tests"]', ["a.py"]),
        ('exclude = ["tests/"]', ["a.py"]),
        ('exclude = ["tests/*/c.py"]', ["a.py", "b.py"]),
        ('exclude = ["**/c.py", "./a.py"]', ["b.py"]),
        ('exclude = ["?.py"]', []),
        ('select = ["order-divergence"]', []),
        ('ignore = ["SYNC004"]', []),
        ('ignore = ["ALL"]', []),
        ('per-file-ignores = { "tests/*" = ["SYNC004"] }', ["a.py"]),
        ('per-file-ignores = { "a.py" = ["rank-guarded-collective"], "b.py" = ["ALL"] }', ["c.py"]),
    ],
)
def test_a_table_says_what_is_linted_and_by_what(text, found, project):
    configure(project, text)
    assert files([project]) == found


def test_the_nearest_table_above_the_paths_is_read(project):
    configure(project, 'ignore = ["SYNC004"]')
    (project / "tests" / "pyproject.toml").write_text("[project]\nname = 'inner'\n")
    paths = [project / "tests" / "b.py", project / "tests" / "deep"]
    assert configured(paths).source == project / "pyproject.toml"
    configure(project / "tests", "strict = true")
    assert configured(paths).strict
    assert not configured([*paths, project / "a.py"]).strict


def test_the_command_wins_over_the_file(project, monkeypatch):
    configure(project, 'ignore = ["SYNC004"]\nexclude = ["a.py"]')
    assert files([project], ignore=()) == ["b.py", "c.py"]
    monkeypatch.chdir(project)
    assert files([Path()], ignore=(), exclude=("tests",)) == ["a.py"]


def test_what_is_excluded_is_not_read_even_where_it_is_named(project):
    configure(project, 'exclude = ["tests"]')
    named = [project / "tests" / "b.py"]
    linted = lint(named, given(named))
    assert (linted.files, linted.exit_status) == (0, 0)
    assert linted.passed[0].why == "it is excluded"


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ('selekt = ["SYNC"]', UnknownName, "did you mean select?"),
        ("per_file_ignores = {}", UnknownName, "did you mean per-file-ignores?"),
        ("select = 3", BadValue, "`select` of [tool.holdfast.lint] in"),
        ('select = "SYNC"', BadValue, "a list of names of rules"),
        ('exclude = ["a", 2]', BadValue, "a list of patterns"),
        ('per-file-ignores = { "a.py" = "SYNC004" }', BadValue, "a table of patterns with lists of names"),
        ('strict = "yes"', BadValue, "true or false is wanted"),
        ("select = [", BadValue, "cannot be read as TOML"),
        ('ignore = ["rank-guarded-colective"]', UnknownName, "did you mean rank-guarded-collective"),
        ('per-file-ignores = { "a.py" = ["order-divergense"] }', UnknownName, "did you mean order-divergence"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused_in_one_sentence(text, error, said, project):
    configure(project, text)
    with pytest.raises(error) as raised:
        given([project]).rules()
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "text", ["[tool.holdfast]\nlint = 3", "[tool.holdfast.lnt]", "\xff", "a = " + "[" * 100_000, "x = 1\n" * 300_000]
)
def test_a_file_that_is_hostile_is_refused(text, project):
    (project / "pyproject.toml").write_bytes(b"# holdfast\n" + text.encode("latin-1"))
    with pytest.raises((BadValue, UnknownName)):
        given([project])


def test_a_template_of_others_is_not_ours_to_refuse(project):
    (project / "pyproject.toml").write_text("[project]\nname = {{ name }}\n")
    assert given([project]).source is None


@pytest.mark.parametrize(
    ("text", "path", "means"),
    [
        ("*_pb2.py", "/r/x/y_pb2.py", True),
        ("x", "/r/x/y.py", True),
        ("x", "/elsewhere/x/y.py", False),
        ("y.py", "/elsewhere/x/y.py", True),
        ("x/y", "/r/x/y/z.py", True),
        ("x/y", "/r/a/x/y/z.py", False),
        ("**/x/y", "/r/a/x/y/z.py", True),
        ("/elsewhere/*", "/elsewhere/x/y.py", True),
        ("", "/r/x", False),
    ],
)
def test_patterns(text, path, means):
    assert Pattern("/r", text).means(path) is means
