"""A divergence: a line where ranks may take different paths, as rules judge it."""

from __future__ import annotations

import re

import msgspec

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.effects import Operation
from holdfast.lint.abstract_domain.values import RANK_OR_SELECTED, Taint, TaintKind, is_rank_only

#: A test of the rank, by the names in it.
_RANK_NAME = re.compile(
    r"rank|process_index|proc_id|zero\b|\b(?:is_)?(?:main|master|chief|leader|primary)"
    r"(?:_proc|_process|_node|_worker)?\b",
    re.IGNORECASE,
)


#: Values of ``unproved``.
HAS_PARTNER, MAY_EXIST = "partner", "exists"


def names_rank(text: str) -> bool:
    """Return True if a test names the rank, or the process that is the main one."""
    return _RANK_NAME.search(text) is not None


class Divergence(msgspec.Struct, frozen=True):
    """A line where ranks may diverge.

    ``kind`` is ``branch``, ``exit``, ``loop``, ``order``, ``except``, ``swallowed``, ``root``,
    ``shape``, ``ranks``, ``thread``, ``paired``, ``undecided``, or the name of a marker or pattern.
    ``location`` is the line at fault, ``guard`` the test with its ``text``, ``sources`` the taint
    of the test, ``op`` the first collective that not all ranks enter, ``call_chain`` the calls that
    lead to it. ``barrier``: a barrier follows. ``detail``: the statement that leaves (``return``),
    or other text for the message. ``unproved``: the other ranks may
    enter the collective elsewhere (:data:`HAS_PARTNER`), or have created the group already
    (:data:`MAY_EXIST`). ``by_name``: it rests on names, so that it is reported as a note.
    ``conditional``: a test of unknown answer in a called function decides if it enters ``op``.
    """

    kind: str
    location: SourceLine
    guard: SourceLine
    text: str
    sources: Taint
    op: Operation | None = None
    call_chain: tuple[SourceLine, ...] = ()
    detail: str = ""
    barrier: bool = False
    unproved: str = ""
    by_name: bool = False
    conditional: bool = False

    @property
    def op_kind(self) -> str:
        """Return the kind of ``op``; empty without one."""
        return self.op.kind if self.op is not None else ""

    @property
    def names_rank(self) -> bool:
        """Return True if the test names the rank, or the process that is the main one."""
        return names_rank(self.text)

    def is_shown(self, *, in_large_program: bool) -> bool:
        """Return True if a source on the path shows that ranks differ.

        Weak sources and, in a large program, an element selected by rank show nothing but the rank
        itself, and that only in a test that names it.
        """
        sized = self.kind in ("loop", "shape", "ranks") or self.op_kind == "creation"
        names_rank = not sized and self.names_rank
        return not self.sources or any(
            (not source.weak and not (in_large_program and source.kind is TaintKind.OWN))
            or (source.kind in RANK_OR_SELECTED and names_rank)
            for source in self.sources
        )

    @property
    def is_rank_only(self) -> bool:
        """Return True if the divergence depends on nothing but the rank."""
        return is_rank_only(self.sources)
