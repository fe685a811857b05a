"""Variables that programs set: each line that surely sets one, unless the program itself reads it."""

import pytest

from holdfast.facts.code.programs import program


def found(*texts):
    files = {f"m{at}": (f"m{at}.py", f"import os\n{text}\n") for at, text in enumerate(texts)}
    return [(each.text, each.how) for each in program(files).look() if each.kind == "set"]


@pytest.mark.parametrize(
    "text",
    [
        "os.environ['NCCL_TIMEOUT'] = '60'",
        "os.environ.setdefault('NCCL_TIMEOUT', '60')",
        "os.putenv('NCCL_TIMEOUT', '60')",
        "env = {**os.environ, 'NCCL_TIMEOUT': '60'}",
    ],
)
def test_a_variable_that_is_set_is_found_with_its_value(text):
    assert found(text) == [("NCCL_TIMEOUT", "60")]


def test_a_value_that_is_worked_out_is_not_known():
    assert found("os.environ['NCCL_TIMEOUT'] = str(limit)") == [("NCCL_TIMEOUT", "")]


@pytest.mark.parametrize(
    "text",
    [
        "limit = os.environ.get('NCCL_TIMEOUT')",
        "limit = os.environ['NCCL_TIMEOUT']",
        "asked = 'NCCL_TIMEOUT' in os.environ",
    ],
)
def test_what_another_file_of_the_program_reads_has_a_reader(text):
    assert found("os.environ['NCCL_TIMEOUT'] = '60'", text) == []


def test_other_names_and_tables_of_names_are_left_alone():
    assert found("os.environ['MODEL_FOLDER'] = 'x'", "TABLE = {'NCCL_TIMEOUT': Row()}  # environment of jobs") == []
