"""Recognizes commands with which DeepSpeed's launcher starts several hosts.

Source: deepspeed/launcher/runner.py (0.9 to 0.19). With a hostfile of several hosts, pdsh (or
mpirun) starts the workers of all hosts, the own one included, with variables of a few prefixes and
those of the file ``.deepspeed_env`` in the home folder or the launcher's working directory. With
one host, with ``--no_ssh`` and under ``--launcher slurm`` workers inherit the whole environment;
with the mpirun of MPICH and Intel they mostly do.
"""

from __future__ import annotations

from collections.abc import Sequence

_PROGRAMS = frozenset({"deepspeed", "ds"})
_COMMAND_PREFIXES = frozenset({"env", "nohup", "exec", "time", "command", "sudo", "-E"})
_SELECTIVE_LAUNCHERS = frozenset({"pdsh", "openmpi"})
_ALIASES = {"-H": "--hostfile", "--num-nodes": "--num_nodes"}


def starts_several_hosts(words: Sequence[str]) -> bool:
    """Return whether this command, split into words, starts workers by pdsh or Open MPI.

    Without ``--hostfile`` and ``--num_nodes`` it depends on /job/hostfile, and counts as one host.
    """
    index = next(
        (
            index
            for index, word in enumerate(words)
            if word not in _COMMAND_PREFIXES and "=" not in word
        ),
        len(words),
    )
    if index == len(words) or words[index].rpartition("/")[2] not in _PROGRAMS:
        return False
    options = _options(words[index + 1 :])
    selective = options.get("--launcher", "pdsh").casefold() in _SELECTIVE_LAUNCHERS
    several = (
        "--hostfile" in options
        or options.get("--num_nodes", "-1").isdigit()
        or "--force_multi" in options
    )
    return selective and several and options.get("--num_nodes") != "1" and "--no_ssh" not in options


def _options(words: Sequence[str]) -> dict[str, str]:
    """Return the launcher's options up to the script; the values of flags are meaningless."""
    options: dict[str, str] = {}
    for index, word in enumerate(words):
        if word.endswith(".py"):
            break
        name, sign, value = word.partition("=")
        if name.startswith("-"):
            following = words[index + 1] if index + 1 < len(words) else ""
            options[_ALIASES.get(name, name)] = value if sign else following
    return options
