"""Files of a training program: what may run code while it is loaded, and what is written over the last good one."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from holdfast.facts.code.partings import Parting
from holdfast.facts.code.passages import Passage, argument, says


def files(passage: Passage) -> Iterator[Parting]:
    """The partings of one passage."""
    yield from _unsafe(passage)


def _unsafe(passage: Passage) -> Iterator[Parting]:
    """``torch.load(…, weights_only=False)`` of a file that this function has not just written itself."""
    own = {ast.unparse(path) for call in passage.calls("torch.save") if (path := argument(call, 1, "f")) is not None}
    for call in passage.calls("torch.load"):
        path = argument(call, 0, "f")
        if says(call, "weights_only", answer=False) and path is not None and ast.unparse(path) not in own:
            place = passage.place(call)
            yield Parting("pickle", place, place, ast.unparse(path), ())
