"""A guard is found in whatever form it stands, and of its innocent twin nothing is said."""

import textwrap

import pytest

from holdfast.actions.lint.linting import lint
from tests.facts.code.forms import differences, frameworks, indirection, language, names

FORMS = language.FORMS | names.FORMS | frameworks.FORMS | differences.FORMS | indirection.FORMS


def said(folder, text):
    """The lines on which something worse than advice is said."""
    path = folder / "program.py"
    path.write_text(text)
    return {claim.finding.subject.line for claim in lint([path]).claims if claim.finding.level != "note"}


def marked(text):
    """The lines of which one is to be named."""
    return {number for number, line in enumerate(text.split("\n"), 1) if "# found" in line}


def test_no_form_hides_another_of_its_name():
    assert len(FORMS) == sum(len(each.FORMS) for each in (differences, frameworks, indirection, language, names))


@pytest.mark.parametrize("form", FORMS)
def test_the_guard_is_found(form, tmp_path):
    text = textwrap.dedent(FORMS[form][0]).lstrip()
    assert said(tmp_path, text) & marked(text)


@pytest.mark.parametrize("form", FORMS)
def test_of_the_innocent_twin_nothing_is_said(form, tmp_path):
    assert said(tmp_path, textwrap.dedent(FORMS[form][1]).lstrip()) == set()
