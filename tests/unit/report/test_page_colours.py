"""Contrast of the page's colours by WCAG 2.1: 4.5 for text, 3 for the bars of the chart."""

from __future__ import annotations

import re

import pytest

from holdfast.report.html import template_source
from holdfast.report.incident_chart import FAMILIES, OTHER

TEXT, GRAPHICS = 4.5, 3.0
PAIRS = [
    ("ink", ("paper", "card", "code", "alarm-wash")),
    ("soft", ("paper", "card", "code")),
    ("alarm", ("paper", "card", "alarm-wash")),
    ("calm", ("card",)),
]


def palettes() -> dict[str, dict[str, str]]:
    """Return the variables by theme; each theme overrides those of the light one."""
    style = template_source("incident.css")
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    light, dark, printed = (dict(re.findall(r"--([\w-]+): (#\w+)", block)) for block in blocks)
    return {"light": light, "dark": light | dark, "print": light | printed}


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(digit * 2 for digit in colour[1:])
    shares = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (
        share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    darker, lighter = sorted((luminance(first), luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


def test_the_formula_agrees_with_the_examples_of_wcag():
    assert contrast("#000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#fff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_text_and_bars_are_legible(theme):
    colours = palettes()[theme]
    wanted = [(name, ground, TEXT) for name, grounds in PAIRS for ground in grounds]
    wanted += [
        (name, ground, GRAPHICS)
        for name in (*FAMILIES, OTHER, "link")
        for ground in ("card", "alarm-wash")
    ]
    measured = [
        (name, ground, limit, contrast(colours[name], colours[ground]))
        for name, ground, limit in wanted
    ]
    assert [each for each in measured if each[3] < each[2]] == []
