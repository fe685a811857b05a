"""The command with which a job was started, for remedies that start it again."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.redaction.redact_command import redact_arguments

#: Options of the interpreter that have a value of their own.
_WITH_VALUE = frozenset({"-W", "-X"})

#: Programs with torchrun's options.
_PROGRAMS = frozenset({"torchrun", "torch.distributed.run"})


def script_command(words: Sequence[str]) -> tuple[str, ...]:
    """Return script and arguments of a rank's command line, without secrets.

    ``python -u train.py --lr 1`` gives ``train.py --lr 1``; a module keeps its ``-m``. Empty for
    ``python -c``, and if there is no script.
    """
    rest = list(words[1:])
    while rest and rest[0].startswith("-"):
        if rest[0] == "-m" and len(rest) > 1 and rest[1].startswith("holdfast."):
            rest = rest[2:]  # our bootstrap, before the script
        elif rest[0] in {"-m", "-c"}:
            break
        else:
            rest = rest[2 if rest[0] in _WITH_VALUE else 1 :]
    return () if rest[:1] == ["-c"] else redact_arguments(rest)


def launch_options(
    launcher: Sequence[str], script: Sequence[str], local_size: int | None
) -> tuple[str, ...]:
    """Return the options of torchrun or `holdfast run` that started ``script``.

    For other launchers, the number of its ranks on this host.
    """
    given = redact_arguments(launcher)
    names = [word.rsplit("/", 1)[-1] for word in given[:6]]
    begin = next(
        (
            at
            for at in range(1, len(names) + 1)
            if names[at - 1] in _PROGRAMS or names[max(at - 2, 0) : at] == ["holdfast", "run"]
        ),
        None,
    )
    if begin is not None and script and given[-len(script) :] == tuple(script):
        return given[begin : len(given) - len(script)]
    return () if local_size is None else ("--nproc-per-node", str(local_size))
