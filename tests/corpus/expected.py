"""What each program of the corpus is: its cause in the catalogue, others that are right as well, and the rank."""

from __future__ import annotations

from dataclasses import dataclass, field

HEALTHY = "no-failure"


@dataclass(frozen=True)
class Expected:
    """``accepted``: causes as good as ``cause``. ``rank``: the one to name, None where a log cannot tell."""

    cause: str
    accepted: tuple[str, ...] = ()
    rank: int | None = None
    processes: int = 3
    options: tuple[str, ...] = ("--standalone",)
    environment: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    signal_after_s: float | None = None  # SIGTERM for the launcher
    shm_bytes: int | None = None  # size of a /dev/shm of its own


_LATE = ("watchdog-timeout-straggler", "rank-missing-collective")

EXPECTED = {
    "exception_on_one": Expected("python-exception-on-one-rank", rank=1),
    "exception_late": Expected("python-exception-on-one-rank", rank=2),
    "permission": Expected("python-exception-on-one-rank", rank=0),
    "exception_on_all": Expected("python-exception-all-ranks", rank=0),
    "import_error": Expected("python-exception-all-ranks", rank=0),
    "no_gpu": Expected("python-exception-all-ranks", ("cuda-driver-mismatch", "invalid-device-ordinal"), rank=0),
    "segfault": Expected("segfault-in-worker", rank=1),
    "killed": Expected("host-oom-killed", ("peer-lost", "rank-killed"), rank=2),
    "terminated": Expected("signal-sigterm-preempted", signal_after_s=6.0),
    "port_in_use": Expected("port-in-use", processes=2, options=(), arguments=("--port",)),
    "name_resolution": Expected(
        "hostname-resolution", ("master-unreachable",), processes=1, environment={"HOST": "master.invalid"}
    ),
    "master_unreachable": Expected("master-unreachable", processes=1, environment={"HOST": "127.0.0.1"}),
    "ddp_unused": Expected("unused-parameters-ddp"),
    "ddp_twice": Expected("ddp-param-ready-twice"),
    "files": Expected("fd-limit", rank=1),
    "memory": Expected("host-oom-killed", ("python-exception-on-one-rank",), rank=1),
    "loader_killed": Expected("dataloader-worker-died", rank=1),
    "loader_shm": Expected("shm-too-small", ("dataloader-worker-died",), shm_bytes=1 << 20),
    "disk_full": Expected("checkpoint-io-slow-timeout", rank=0, shm_bytes=1 << 20),
    "checkpoint_cut": Expected("checkpoint-corrupt", ("python-exception-all-ranks",)),
    "nan": Expected("mixed-precision-nan"),
    "shape": Expected("collective-mismatch", ("mismatched-shape",), rank=2),
    "dtype": Expected("collective-mismatch", ("mismatched-dtype",)),
    "detail": Expected("collective-mismatch", environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
    "monitored_barrier": Expected("rank-missing-collective", rank=1),
    "sleeps": Expected("rank-missing-collective", _LATE),
    "uneven": Expected("uneven-inputs", (*_LATE, "peer-lost")),
    "leaves": Expected("rank-exits-early", (*_LATE, "peer-lost")),
    "prepares": Expected("rank0-long-work-timeout", rank=0),
    "healthy": Expected(HEALTHY),
    "healthy_noise": Expected(HEALTHY),
    "healthy_spike": Expected(HEALTHY),
    "healthy_retry": Expected(HEALTHY),
}
