"""The forms in which programs write their rank: marked off, as a field, or in a sentence.

A number is a rank only next to the word: indices of GPUs, numbers of hosts and processes are none.
Ranks of other kinds (local, of a node, within a group, of a matrix, of a peer) are none either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_RANK = re.compile(
    r"(?:(?<![\w-])|(?<=WORLD_)|(?<=\bPMI_)|(?<=\bPMIX_))(?:(?:global|world)[_ ]?)?rank(?:id)?"
    r"(?P<separator>[\"']?\s{0,2}[:=]\s{0,2}|[ _#-]{0,2}|[\[(])(?P<rank>\d{1,6})(?!\w|\.\d|-?D\b)"
    r"|\b(?:SLURM_PROCID|process_index)(?P<field>[\"']?\s?[:=]\s?)(?P<process>\d{1,6})(?!\w|\.\d)",
    re.IGNORECASE,
)
#: Before the word: the rank is a local one, another rank's, one within a group, or LoRA's.
_OTHER = re.compile(
    r"(?:local|node|machine|group|lora|low|full|peer|remote|root|source|src|dst|[tpdecs]p|tensor"
    r"|pipeline|parallel|data|expert|model|matrix|from|to|with|for|of|check)[\s_:-]{0,3}$",
    re.IGNORECASE,
)
#: Ranks of matrices, in messages about adapters.
_OF_MATRICES = re.compile(
    r"\blora(?:_|\b)|low.rank|adapter|rank[- ]?\d+ (?:tensor|matri)", re.IGNORECASE
)
#: What marks a rank off, before and after it.
_OPENED = re.compile(r"[\[(<{|@](?:[^\])>}|]{0,40}[\s:,|])?$|(?:^|\s)[-|] $")
_CLOSED = re.compile(r"(?: ?(?:/|of) ?\d{1,6})?\s?[\])>}|,]| - ")
#: A rank at the start of a message, after names in brackets, a level and a host at most.
_AT_START = re.compile(
    r"\s{0,8}(?:\[[^\]]{1,60}\]:? ?){0,2}(?:[A-Z]{4,8}[: ] ?)?(?:[\w.-]{0,40}\d[\w.-]{0,40} )?"
)
_HEADING = re.compile(r":(?!\d)| - |/\d{1,6}[:\s]| \((?:local|node|host)\b[^)]{0,60}\):? ")
_IN_SENTENCE = re.compile(
    r"(?:[\[(,;:|@] ?|\b(?:on|by|worker|process|exception in|error (?:in|from)) )$", re.IGNORECASE
)
_ENDED = re.compile(r" (?:failed|crashed|raised|died|exited|aborted|is dead)\b")
#: A mark of the writer is this near to the start of a line.
_MARK_CHARACTERS = 200


def marked_rank(text: str) -> int | None:
    """Return the rank that is marked off near the start of a line, such as ``[n1 rank_3]``."""
    if "ank" not in text[:_MARK_CHARACTERS].lower():
        return None
    return next((rank for rank, marked in _ranks(text, _MARK_CHARACTERS) if marked), None)


def rank_in_message(text: str) -> int | None:
    """Return the rank that a message names as its writer; None for none, or several ranks.

    GPU indices, numbers of hosts, local ranks and ranks of peers are not ranks of the writer.
    """
    ranks = {rank for rank, _ in _ranks(text, len(text))}
    return ranks.pop() if len(ranks) == 1 else None


def _ranks(text: str, limit: int) -> Iterator[tuple[int, bool]]:
    """Yield the ranks of writers, and whether they are marked off from the message."""
    for found in _RANK.finditer(text, 0, limit):
        if found["process"]:
            yield int(found["process"]), False
            continue
        begin, end = found.start(), found.end()
        if _OTHER.search(text, 0, begin) or _OF_MATRICES.search(text):
            continue
        separator = found["separator"]
        marked = bool(
            separator in ("[", "(") or (_ends(_OPENED, text, begin) and _CLOSED.match(text, end))
        )
        at_start = _AT_START.fullmatch(text, 0, begin) is not None
        heads = at_start and _HEADING.match(text, end) is not None
        stated = (
            ":" in separator
            or "=" in separator
            or (at_start and (end == len(text) or not text[end].isalnum()))
            or _ends(_IN_SENTENCE, text, begin)
            or _ENDED.match(text, end) is not None
        )
        if marked or heads or stated:
            yield int(found["rank"]), marked or heads


def _ends(expression: re.Pattern[str], text: str, at: int) -> bool:
    """Return whether ``expression``, which has an end, matches the text before ``at``."""
    return expression.search(text[max(at - 60, 0) : at]) is not None
