"""Rule selection from the command line and the nearest [tool.holdfast.lint]."""

from pathlib import Path

import pytest

from holdfast.core.errors import InvalidValue, UnknownName
from holdfast.lint.options import Pattern, load_configuration, parse_lint_options
from holdfast.lint.run import lint_paths

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
    return [
        Path(finding.finding.subject.file).name
        for finding in lint_paths(paths, parse_lint_options(paths, **options)).findings
    ]


@pytest.mark.parametrize(
    ("text", "expected_files"),
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
def test_the_table_selects_files_and_rules(text, expected_files, project):
    configure(project, text)
    assert files([project]) == expected_files


def test_the_nearest_table_above_the_paths_applies(project):
    configure(project, 'ignore = ["SYNC004"]')
    (project / "tests" / "pyproject.toml").write_text("[project]\nname = 'inner'\n")
    paths = [project / "tests" / "b.py", project / "tests" / "deep"]
    assert load_configuration(paths).source == project / "pyproject.toml"
    configure(project / "tests", "strict = true")
    assert load_configuration(paths).strict
    assert not load_configuration([*paths, project / "a.py"]).strict


def test_the_command_line_overrides_the_file(project, monkeypatch):
    configure(project, 'ignore = ["SYNC004"]\nexclude = ["a.py"]')
    assert files([project], ignore=()) == ["b.py", "c.py"]
    monkeypatch.chdir(project)
    assert files([Path()], ignore=(), exclude=("tests",)) == ["a.py"]


def test_an_excluded_file_is_skipped_even_if_named(project):
    configure(project, 'exclude = ["tests"]')
    named = [project / "tests" / "b.py"]
    linted = lint_paths(named, parse_lint_options(named))
    assert (linted.files, linted.exit_status) == (0, 0)
    assert linted.skipped[0].why == "excluded"


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ('selekt = ["SYNC"]', UnknownName, "did you mean select?"),
        ("per_file_ignores = {}", UnknownName, "did you mean per-file-ignores?"),
        ("select = 3", InvalidValue, "`select` of [tool.holdfast.lint] in"),
        ('select = "SYNC"', InvalidValue, "a list of rule names"),
        ('exclude = ["a", 2]', InvalidValue, "a list of patterns"),
        (
            'per-file-ignores = { "a.py" = "SYNC004" }',
            InvalidValue,
            "a table of lists of rule names",
        ),
        ('strict = "yes"', InvalidValue, "expected true or false"),
        ("select = [", InvalidValue, "not valid TOML"),
        (
            'ignore = ["rank-guarded-colective"]',
            UnknownName,
            "did you mean rank-guarded-collective",
        ),
        (
            'per-file-ignores = { "a.py" = ["order-divergense"] }',
            UnknownName,
            "did you mean order-divergence",
        ),
    ],
)
def test_an_invalid_table_is_rejected_in_one_sentence(text, error, message, project):
    configure(project, text)
    with pytest.raises(error) as raised:
        parse_lint_options([project]).rules()
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "[tool.holdfast]\nlint = 3",
        "[tool.holdfast.lnt]",
        "\xff",
        "a = " + "[" * 100_000,
        "x = 1\n" * 300_000,
    ],
)
def test_a_hostile_file_is_rejected(text, project):
    (project / "pyproject.toml").write_bytes(b"# holdfast\n" + text.encode("latin-1"))
    with pytest.raises((InvalidValue, UnknownName)):
        parse_lint_options([project])


def test_an_unrelated_template_is_ignored(project):
    (project / "pyproject.toml").write_text("[project]\nname = {{ name }}\n")
    assert parse_lint_options([project]).source is None


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
    assert Pattern("/r", text).matches(path) is means
