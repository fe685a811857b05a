"""A guard is found in every syntactic form, and its correct version has no finding."""

import textwrap

import pytest

from holdfast.lint.run import lint_paths
from tests.unit.lint.interpreter.forms import (
    frameworks,
    heap,
    indirection,
    language,
    lengths,
    names,
    objects,
    partitions,
    points,
    varying_values,
)

MODULES = (
    language, names, frameworks, varying_values, indirection, heap, lengths, objects, partitions,
    points,
)  # fmt: skip
FORMS = {name: form for module in MODULES for name, form in module.FORMS.items()}


def reported_lines(folder, text):
    """Return the lines with findings above advice."""
    path = folder / "program.py"
    path.write_text(text)
    return {
        claim.finding.subject.line
        for claim in lint_paths([path]).findings
        if claim.finding.level != "note"
    }


def marked_lines(text):
    """Return the lines of which one must be reported."""
    return {number for number, line in enumerate(text.split("\n"), 1) if "# found" in line}


def test_form_names_are_unique():
    assert len(FORMS) == sum(len(module.FORMS) for module in MODULES)


@pytest.mark.parametrize("form", FORMS)
def test_the_guard_is_found(form, tmp_path):
    text = textwrap.dedent(FORMS[form][0]).lstrip()
    assert reported_lines(tmp_path, text) & marked_lines(text)


@pytest.mark.parametrize("form", FORMS)
def test_the_correct_version_has_no_finding(form, tmp_path):
    assert reported_lines(tmp_path, textwrap.dedent(FORMS[form][1]).lstrip()) == set()
