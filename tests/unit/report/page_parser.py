"""Parse a page: elements must nest; elements, attributes and text are stored."""

from __future__ import annotations

from html.parser import HTMLParser

from holdfast.report.html import incident_page
from tests.unit.report.sample import Incident

VOID = {"meta", "link", "path", "rect", "br", "img", "wbr"}


class Page(HTMLParser):
    """Parser of a page: checks that elements nest; stores elements, attributes and text."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(source)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self._open.pop() == tag, self.getpos()

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        if not self._open or self._open[-1] not in {"style", "script"}:
            self.text.append(data)

    def count(self, tag: str, css: str | None = None) -> int:
        return sum(
            name == tag and (css is None or css in (attributes.get("class") or "").split())
            for name, attributes in self.elements
        )

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def page_of(sample: Incident) -> str:
    return incident_page(
        sample.verdict,
        sample.timeline,
        title=sample.title,
        facts=sample.facts,
        stacks=sample.stacks,
        run=sample.run,
    )
