from pathlib import Path

from docs.generate import PAGES
from holdfast.plan.generate.mapping import SETTING_MAPPINGS

DOCS = Path(__file__).parents[4] / "docs"


def test_guide_is_generated_from_the_mapping():
    assert (DOCS / "migration.md").read_text() == PAGES["migration.md"](), "run: make fix"


def test_the_guide_has_every_setting():
    page = (DOCS / "migration.md").read_text()
    assert [key for key in SETTING_MAPPINGS if f"`{key}`" not in page] == []
