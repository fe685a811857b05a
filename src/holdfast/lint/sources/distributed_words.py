"""Decide by the words of a script and of its imports whether ranks may diverge in the script."""

from __future__ import annotations

import re
from collections.abc import Iterable

from holdfast.lint import library
from holdfast.lint.sources.files import SourceFile
from holdfast.lint.sources.relevance import COLLECTIVE_WORDS, VARYING_WORDS

#: Words that programs of one process use, too: of training, threads and checkpoints.
_ORDINARY_WORDS = frozenset({
    "backward", "load_state_dict", "clip_grad_norm_", "GradScaler", "unscale_", "Thread", "alarm",
    "setitimer", "save_model", "load_checkpoint", "save_checkpoint", "load_state", "save_state",
    "get_state_dict", "set_state_dict", "prepare",
})  # fmt: skip
#: Words of programs with several ranks.
_DISTRIBUTED_WORDS = (COLLECTIVE_WORDS - _ORDINARY_WORDS) | {
    *library.RECEIVER_NAMES, "Accelerator", "Fabric", "Trainer", "LightningModule", "deepspeed",
}  # fmt: skip
#: Words that a script needs for a finding: without them, it leaves all that varies to its imports.
_ANY_WORDS = _DISTRIBUTED_WORDS | COLLECTIVE_WORDS | VARYING_WORDS
#: Collectives with a name that usually means something else.
_COLLECTIVE_CALL = re.compile(
    rb"\bdist(?:ributed)?\.(?:broadcast|gather|reduce|scatter|i?send|i?recv|batch_)"
)
_WORD = re.compile(r"[A-Za-z_]\w*")


class DistributedWords:
    """The words of files, each searched once."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[bool, bool]] = {}

    def may_diverge(self, own: Iterable[SourceFile], imported: Iterable[SourceFile]) -> bool:
        """Return True if there may be findings in these files that need what they import.

        They then have a word of a collective or of a varying value, and some file has a word that
        only programs of several ranks have.
        """
        own = list(own)
        if not any(self._search(file)[0] for file in own):
            return False
        return any(self._search(file)[1] for file in (*own, *imported))

    def _search(self, file: SourceFile) -> tuple[bool, bool]:
        """Return whether a file has any of the words, and one of programs with several ranks."""
        path = str(file.path)
        found = self._known.get(path)
        if found is None:
            words = set(_WORD.findall(file.content.decode(errors="replace")))
            distributed = (
                not _DISTRIBUTED_WORDS.isdisjoint(words)
                or _COLLECTIVE_CALL.search(file.content) is not None
            )
            found = self._known[path] = (
                distributed or not _ANY_WORDS.isdisjoint(words),
                distributed,
            )
        return found
