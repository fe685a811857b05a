"""Finds the line of work that never ends from many stacks of one rank.

Work in a loop shows other lines in each sample, but the frames around the loop stay. Stacks are
read from the outermost user frame inwards, as far as most samples agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.core.rank_table import SourceLine, ThreadStack
from holdfast.host.processes.user_code import is_user_file

#: Samples that are kept, and the minimum to judge.
MAX_SAMPLES, MIN_SAMPLES = 32, 4
#: Fraction of the samples that must agree.
MIN_SHARE = 0.8


class RepeatedStacks:
    """The user frames of one rank's newest stacks since it last advanced."""

    def __init__(self) -> None:
        self._samples: list[tuple[SourceLine, ...]] = []

    def clear(self) -> None:
        """Forget all samples: the rank advanced."""
        self._samples.clear()

    def add(self, stack: ThreadStack) -> None:
        """Add a sample."""
        frames = (frame for frame in reversed(stack.frames) if is_user_file(frame.file))
        self._samples = [*self._samples[1 - MAX_SAMPLES :], tuple(frames)]

    def steady_lines(self) -> tuple[SourceLine, ...]:
        """Return :func:`steady_lines` of the samples; empty with too few of them."""
        if len(self._samples) < MIN_SAMPLES:
            return ()
        return steady_lines(self._samples)


def steady_lines(samples: Sequence[tuple[SourceLine, ...]]) -> tuple[SourceLine, ...]:
    """Return the innermost common line, and the last line reached in a function inside of it.

    In a loop that never ends, that line decides to continue.
    """
    required, depth = MIN_SHARE * len(samples), 0
    common: SourceLine | None = None
    while True:
        frames = [sample[depth] for sample in samples if len(sample) > depth]
        if len(frames) < required:
            break
        line, count = Counter(frames).most_common(1)[0]
        if count < required:
            inside = [frame for frame in frames if _function(frame) == _function(line)]
            last = max(inside, key=lambda frame: frame.line)
            varies = len(inside) >= required
            return (*((common,) if common else ()), *((last,) if varies else ()))
        samples = [sample for sample in samples if len(sample) > depth and sample[depth] == line]
        common, depth = line, depth + 1
    return (common,) if common is not None else ()


def _function(frame: SourceLine) -> tuple[str, str]:
    return frame.file, frame.function
