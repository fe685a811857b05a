"""torchrun's options for ``holdfast run --help`` and its suggestions, without importing torch.

A test compares the table with the installed torch; other versions may lack options or have more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

#: Group -> options: flags, name of the value (empty: none), description.
TORCHRUN_OPTIONS: Mapping[str, Sequence[tuple[tuple[str, ...], str, str]]] = {
    "Processes and nodes (torchrun)": (
        (("--nnodes",), "N or MIN:MAX", "Number of nodes (default: 1)."),
        (("--nproc-per-node",), "N", "Workers per node, or gpu, cpu, xpu, auto (default: 1)."),
        (("--node-rank",), "R", "Rank of this node; static rendezvous only (default: 0)."),
        (("--max-restarts",), "N", "Restarts of the workers before the job fails (default: 0)."),
        (("--role",), "NAME", "Role of the workers (default: default)."),
        (("--virtual-local-rank",), "", "LOCAL_RANK=0 everywhere; each worker sees one GPU."),
        (("--numa-binding",), "MODE", "Bind workers to the CPUs near their GPUs."),
    ),
    "Rendezvous (torchrun)": (
        (("--standalone",), "", "One node, with a rendezvous on any free port."),
        (("--master-addr",), "HOST", "Address of node 0; static rendezvous (default: 127.0.0.1)."),
        (("--master-port",), "PORT", "Port of rendezvous and workers; restarts use the next four."),
        (("--rdzv-backend",), "NAME", "static, c10d, etcd or etcd-v2 (default: static)."),
        (("--rdzv-endpoint",), "HOST:PORT", "Endpoint of the rendezvous, the same on all nodes."),
        (("--rdzv-id",), "ID", "Id of the job, the same on all nodes."),
        (("--rdzv-conf",), "K=V,...", "Settings of the rendezvous, e.g. timeout=600."),
        (
            ("--local-addr",),
            "ADDRESS",
            "Address of this node for the others (default: that of the route to the endpoint).",
        ),
    ),
    "Program (torchrun)": (
        (("-m", "--module"), "", "The script is a module, as for python -m."),
        (("--no-python",), "", "The script is a program; it is not recorded."),
        (("--run-path",), "", "Run the script by its absolute path, as runpy.run_path does."),
        (("--start-method",), "NAME", "spawn, fork or forkserver; unused for scripts."),
        (("--monitor-interval",), "S", "Seconds between checks of the workers (default: 0.1)."),
        (("--signals-to-handle",), "NAMES", "Signals that end the job in order."),
        (("--shutdown-timeout",), "S", "Seconds from the first signal to SIGKILL (default: 30)."),
        (("--event-log-handler",), "NAME", "Handler of torchelastic's events."),
    ),
    "Output (torchrun)": (
        (("--log-dir",), "DIR", "Let torch write the logs, into this folder."),
        (("-r", "--redirects"), "STD", "Streams only written to --log-dir: 1 stdout, 2 stderr, 3."),
        (("-t", "--tee"), "STD", "Streams written to --log-dir and printed: 1, 2 or 3."),
        (("--local-ranks-filter",), "RANKS", "Print only these local ranks, e.g. 0,1."),
        (("--duplicate-stdout-filters",), "TEXTS", "Copy lines with these texts to one file."),
        (("--duplicate-stderr-filters",), "TEXTS", "The same for stderr."),
        (("--logs-specs",), "NAME", "Entry point of a class that creates the log files."),
    ),
}


def torchrun_flags() -> list[str]:
    """Return torchrun's flags in their spelling with hyphens."""
    return [flag for _, flags, _, _ in _rows() for flag in flags]


def leading_options(
    arguments: Sequence[str], values: Mapping[str, bool]
) -> Iterator[tuple[str, str]]:
    """Yield each option before the script as written, and in full or empty if it is unknown.

    ``values`` maps holdfast's own flags to whether a value follows.
    """
    yield from leading_words(arguments, values)[0]


def leading_words(
    arguments: Sequence[str], values: Mapping[str, bool]
) -> tuple[list[tuple[str, str]], str]:
    """Return the options before the script as :func:`leading_options` yields them, and the script.

    The script is empty if there is none, or if an unknown option precedes it.
    """
    split, rest = _split_options(arguments, values)
    options = [(name, full) for name, full, _ in split]
    script = rest[1:2] if rest[:1] == ["--"] else rest[:1]
    return options, "".join(script) if all(full for _, full in options) else ""


def torchrun_words(arguments: Sequence[str], values: Mapping[str, bool]) -> list[str]:
    """Return the arguments without holdfast's own options, the flags in ``values``."""
    options, rest = _split_options(arguments, values)
    return [word for _, full, words in options if full not in values for word in words] + rest


def _split_options(
    arguments: Sequence[str], values: Mapping[str, bool]
) -> tuple[list[tuple[str, str, list[str]]], list[str]]:
    """Return the options before the script and the rest.

    Of an option: as written, in full or empty if it is unknown, and its words. What follows an
    unknown option is the rest, because it may be its value.
    """
    known = {**values, **{flag: bool(name) for _, flags, name, _ in _rows() for flag in flags}}
    options: list[tuple[str, str, list[str]]] = []
    rest = list(arguments)
    while rest:
        name, equals, _ = rest[0].partition("=")
        if not name.startswith("-") or name in ("-", "--"):
            break
        full = _complete(name.replace("_", "-"), known)
        has_value = equals or (not name.startswith("--") and len(name) > len(full))  # -r3
        count = 2 if full and known[full] and not has_value else 1
        options.append((name, full, rest[:count]))
        rest = rest[count:]
        if not full:
            break
    return options, rest


def _complete(name: str, known: Collection[str]) -> str:
    """Return the option that ``name`` is or abbreviates; empty if there is none."""
    if not name.startswith("--"):
        return name[:2] if name[:2] in known else ""
    if name in known:
        return name
    return next((each for each in known if each.startswith(name)), "")


def _rows() -> Iterator[tuple[str, tuple[str, ...], str, str]]:
    for group, rows in TORCHRUN_OPTIONS.items():
        for row in rows:
            yield group, *row
