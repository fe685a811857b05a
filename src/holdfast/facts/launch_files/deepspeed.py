"""Lines on which DeepSpeed's launcher starts ranks on several hosts, to which it sends a few variables alone.

As deepspeed/launcher/runner.py has it (0.9 to 0.19): with a hostfile of several hosts, pdsh (or mpirun) starts the
workers of all hosts, also of the own one, with the variables that begin with a few prefixes, and with what the file
``.deepspeed_env`` says, in the home folder or where the launcher is started. With one host, with ``--no_ssh`` and under
``--launcher slurm`` the workers have the whole environment; with MPICH's and Intel's mpirun they mostly do.
"""

from __future__ import annotations

from collections.abc import Sequence

_PROGRAMS = frozenset({"deepspeed", "ds"})
_IN_FRONT = frozenset({"env", "nohup", "exec", "time", "command", "sudo", "-E"})
_SENDING_FEW = frozenset({"pdsh", "openmpi"})
_VALUE = {"-H": "--hostfile", "--num-nodes": "--num_nodes"}


def on_several_hosts(words: Sequence[str]) -> bool:
    """Whether this command (its words, without assignments in front) has pdsh or Open MPI start the workers.

    Without ``--hostfile`` and ``--num_nodes`` it depends on a file /job/hostfile, and is taken for one host.
    """
    at = next((at for at, word in enumerate(words) if word not in _IN_FRONT and "=" not in word), len(words))
    if at == len(words) or words[at].rpartition("/")[2] not in _PROGRAMS:
        return False
    options = _options(words[at + 1 :])
    few = options.get("--launcher", "pdsh").casefold() in _SENDING_FEW
    several = "--hostfile" in options or options.get("--num_nodes", "-1").isdigit() or "--force_multi" in options
    return few and several and options.get("--num_nodes") != "1" and "--no_ssh" not in options


def _options(words: Sequence[str]) -> dict[str, str]:
    """Options of the launcher, up to the script; of those that are flags the value means nothing."""
    found: dict[str, str] = {}
    for at, word in enumerate(words):
        if word.endswith(".py"):
            break
        name, sign, value = word.partition("=")
        if name.startswith("-"):
            following = words[at + 1] if at + 1 < len(words) else ""
            found[_VALUE.get(name, name)] = value if sign else following
    return found
