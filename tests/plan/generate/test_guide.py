from pathlib import Path

from docs.generate import PAGES
from holdfast.plan.generate.mapping import ROWS

DOCS = Path(__file__).parents[3] / "docs"


def test_the_guide_is_what_the_mapping_says():
    assert (DOCS / "migration.md").read_text() == PAGES["migration.md"](), "run: make fix"


def test_the_guide_has_every_setting():
    page = (DOCS / "migration.md").read_text()
    assert [key for key in ROWS if f"`{key}`" not in page] == []
