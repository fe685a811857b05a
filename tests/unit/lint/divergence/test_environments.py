"""Environment variables that a program sets and does not read itself."""

import pytest

from tests.unit.lint.programs import program_from_sources


def analyze(*texts):
    files = {f"m{at}": (f"m{at}.py", f"import os\n{text}\n") for at, text in enumerate(texts)}
    return [
        (divergence.text, divergence.detail)
        for divergence in program_from_sources(files).analyze()
        if divergence.kind == "set"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "os.environ['NCCL_TIMEOUT'] = '60'",
        "os.environ.setdefault('NCCL_TIMEOUT', '60')",
        "os.putenv('NCCL_TIMEOUT', '60')",
        "env = {**os.environ, 'NCCL_TIMEOUT': '60'}",
    ],
)
def test_a_set_variable_is_found_with_its_value(text):
    assert analyze(text) == [("NCCL_TIMEOUT", "60")]


def test_a_computed_value_is_unknown():
    assert analyze("os.environ['NCCL_TIMEOUT'] = str(limit)") == [("NCCL_TIMEOUT", "")]


@pytest.mark.parametrize(
    "text",
    [
        "limit = os.environ.get('NCCL_TIMEOUT')",
        "limit = os.environ['NCCL_TIMEOUT']",
        "asked = 'NCCL_TIMEOUT' in os.environ",
    ],
)
def test_a_variable_read_in_another_file_is_not_reported(text):
    assert analyze("os.environ['NCCL_TIMEOUT'] = '60'", text) == []


def test_other_names_and_tables_of_names_are_ignored():
    assert (
        analyze(
            "os.environ['MODEL_FOLDER'] = 'x'",
            "TABLE = {'NCCL_TIMEOUT': Row()}  # environment of jobs",
        )
        == []
    )
