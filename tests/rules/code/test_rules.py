"""Each rule's own examples: the bad one is found on its marked line, by this rule alone, and the good one is clean."""

from pathlib import Path

import pytest

from docs.generate import PAGES
from holdfast.actions.lint.linting import lint
from holdfast.actions.lint.options import ALL, Options
from holdfast.findings import Level
from holdfast.rules.code.catalogue import RULES
from holdfast.rules.code.rule import LEVELS, Tier, program

BY_NAME = {rule.name: rule for rule in RULES}
DOCS = Path(__file__).parents[3] / "docs"


def found(tmp_path, text, options=ALL):
    file = tmp_path / "example.py"
    file.write_text(text)
    return [(claim.rule, claim.finding.subject.line) for claim in lint([file], options).claims]


@pytest.mark.parametrize("name", BY_NAME)
def test_the_bad_example_is_found_and_the_good_one_is_not(name, tmp_path):
    rule = BY_NAME[name]
    (line,) = [number for number, text in enumerate(program(rule.bad).splitlines(), 1) if "# found" in text]
    options = Options(strict=rule.tier is Tier.UNSURE)
    assert found(tmp_path, program(rule.bad), options) == [(name, line)]
    assert found(tmp_path, program(rule.good), options) == []


@pytest.mark.parametrize("name", BY_NAME)
def test_a_finding_says_who_where_and_why(name, tmp_path):
    file = tmp_path / "example.py"
    file.write_text(program(BY_NAME[name].bad))
    (claim,) = lint([file], Options(strict=BY_NAME[name].tier is Tier.UNSURE)).claims
    assert claim.finding.cause == BY_NAME[name].cause.name
    assert claim.finding.level == LEVELS[BY_NAME[name].tier] != Level.UNKNOWN
    assert claim.finding.remedies
    assert 20 < len(claim.finding.message) < 300


def test_names_are_unique_and_rules_documented():
    assert len(BY_NAME) == len(RULES)
    for rule in RULES:
        assert rule.what_it_does
        assert rule.known_misses


@pytest.mark.parametrize("page", ["rules.md", *(f"rules/{name}.md" for name in BY_NAME)])
def test_every_rule_has_its_page_and_it_is_up_to_date(page):
    assert (DOCS / page).read_text() == PAGES[page](), "run: make fix"
