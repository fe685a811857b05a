"""Evaluations that return 0 on failure and influence a decision."""

import pytest

from tests.unit.lint.programs import program_from_sources

EVALUATE = """\
def evaluate(model):
    try:
        return model.score()
    except %s:
        print("failed")
        %s

"""
WIDE = EVALUATE % ("Exception", "return 0.0")
DECIDED = [
    WIDE
    + "def train(best):\n    accuracy = evaluate(1)\n    if accuracy > best:\n        print('saved')",
    WIDE + "def train(self):\n    loss = self.evaluate(1)\n    self.scheduler.step(loss)",
    WIDE + "def train(self):\n    loss = evaluate(1)\n    return self.early_stopping(loss)",
    "def train(best):\n    try:\n        f1 = compute_metrics(1)\n    except:\n        f1 = 0\n    return f1 > best",
]
FINE = [
    WIDE + "def train(best):\n    accuracy = evaluate(1)\n    print(accuracy)",
    WIDE + "def train(best):\n    accuracy = other(1)\n    return accuracy > best",
    EVALUATE % ("KeyError", "return 0.0") + "def train(best):\n    return evaluate(1) > best",
    EVALUATE % ("Exception", "raise")
    + "def train(best):\n    accuracy = evaluate(1)\n    return accuracy > best",
    EVALUATE % ("Exception", "return None")
    + "def train(best):\n    accuracy = evaluate(1)\n    return accuracy > best",
    "def train(best):\n    try:\n        n = read()\n    except Exception:\n        n = 0\n    return n > best",
]


def analyze(text):
    return [
        divergence.location.line
        for divergence in program_from_sources({"main": ("main.py", text)}).analyze()
        if divergence.kind == "failed"
    ]


@pytest.mark.parametrize("text", DECIDED)
def test_a_deciding_failed_evaluation_is_found_at_the_zero(text):
    (line,) = analyze(text)
    assert text.split("\n")[line - 1].strip() in ("return 0.0", "f1 = 0")


@pytest.mark.parametrize("text", FINE)
def test_values_that_decide_nothing_are_fine(text):
    assert analyze(text) == []


def test_the_prefilter_is_fast_on_blank_lines_and_handlers():
    assert analyze("\n" * 100_000 + "try:\n    pass\nexcept Exception:\n    pass\n" * 2_000) == []
