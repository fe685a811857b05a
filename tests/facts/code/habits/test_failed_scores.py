"""Evaluations that are 0 where they fail: only those that decide something."""

import pytest

from holdfast.facts.code.programs import program

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
    WIDE + "def train(best):\n    accuracy = evaluate(1)\n    if accuracy > best:\n        print('saved')",
    WIDE + "def train(self):\n    loss = self.evaluate(1)\n    self.scheduler.step(loss)",
    WIDE + "def train(self):\n    loss = evaluate(1)\n    return self.early_stopping(loss)",
    "def train(best):\n    try:\n        f1 = compute_metrics(1)\n    except:\n        f1 = 0\n    return f1 > best",
]
FINE = [
    WIDE + "def train(best):\n    accuracy = evaluate(1)\n    print(accuracy)",
    WIDE + "def train(best):\n    accuracy = other(1)\n    return accuracy > best",
    EVALUATE % ("KeyError", "return 0.0") + "def train(best):\n    return evaluate(1) > best",
    EVALUATE % ("Exception", "raise") + "def train(best):\n    accuracy = evaluate(1)\n    return accuracy > best",
    EVALUATE % ("Exception", "return None")
    + "def train(best):\n    accuracy = evaluate(1)\n    return accuracy > best",
    "def train(best):\n    try:\n        n = read()\n    except Exception:\n        n = 0\n    return n > best",
]


def found(text):
    return [each.place.line for each in program({"main": ("main.py", text)}).look() if each.kind == "failed"]


@pytest.mark.parametrize("text", DECIDED)
def test_a_failed_evaluation_that_decides_is_found_where_it_becomes_nought(text):
    (line,) = found(text)
    assert text.split("\n")[line - 1].strip() in ("return 0.0", "f1 = 0")


@pytest.mark.parametrize("text", FINE)
def test_what_decides_nothing_or_is_no_number_is_fine(text):
    assert found(text) == []


def test_a_file_of_blank_lines_and_handlers_is_looked_through():
    assert found("\n" * 100_000 + "try:\n    pass\nexcept Exception:\n    pass\n" * 2_000) == []
