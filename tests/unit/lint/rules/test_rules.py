"""Each rule reports only the marked line of its bad example, and nothing in its good example."""

from pathlib import Path

import pytest

from docs.generate import PAGES
from holdfast.core.findings import Level
from holdfast.lint.options import ALL_RULES, LintOptions
from holdfast.lint.rules.catalogue import RULES
from holdfast.lint.rules.rule import TIER_LEVELS, RuleTier, example_program
from holdfast.lint.run import lint_paths

BY_NAME = {rule.name: rule for rule in RULES}
DOCS = Path(__file__).parents[4] / "docs"


def analyze(tmp_path, text, options=ALL_RULES):
    file = tmp_path / "example.py"
    file.write_text(text)
    return [
        (claim.rule, claim.finding.subject.line) for claim in lint_paths([file], options).findings
    ]


@pytest.mark.parametrize("name", BY_NAME)
def test_the_bad_example_is_found_and_the_good_one_is_clean(name, tmp_path):
    rule = BY_NAME[name]
    (line,) = [
        number
        for number, text in enumerate(example_program(rule.bad).splitlines(), 1)
        if "# found" in text
    ]
    options = LintOptions(strict=rule.tier is RuleTier.UNSURE)
    assert analyze(tmp_path, example_program(rule.bad), options) == [(name, line)]
    assert analyze(tmp_path, example_program(rule.good), options) == []


@pytest.mark.parametrize("name", BY_NAME)
def test_a_finding_names_rank_line_and_cause(name, tmp_path):
    file = tmp_path / "example.py"
    file.write_text(example_program(BY_NAME[name].bad))
    (claim,) = lint_paths(
        [file], LintOptions(strict=BY_NAME[name].tier is RuleTier.UNSURE)
    ).findings
    assert claim.finding.cause == BY_NAME[name].cause.name
    assert claim.finding.level == TIER_LEVELS[BY_NAME[name].tier] != Level.UNKNOWN
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
