"""Cases of torch alone: torchrun, two agents, spawn and plain processes."""

from __future__ import annotations

import signal

from tests.golden.logs.case import HEALTHY, LATE, Expected

OF_TORCH: dict[str, Expected] = {
    "exception_on_one": Expected("python-exception-on-one-rank", rank=1),
    "exception_late": Expected("python-exception-on-one-rank", rank=2),
    "permission": Expected("python-exception-on-one-rank", rank=0),
    "exception_on_all": Expected("python-exception-all-ranks", rank=0),
    "import_error": Expected("python-exception-all-ranks", rank=0),
    "no_gpu": Expected(
        "python-exception-all-ranks", ("cuda-driver-mismatch", "invalid-device-ordinal"), rank=0
    ),
    "segfault": Expected("segfault-in-worker", rank=1),
    "killed": Expected("host-oom-killed", ("peer-lost", "rank-killed"), rank=2),
    "terminated": Expected("signal-sigterm-preempted", signal_after_s=6.0),
    "port_in_use": Expected("port-in-use", processes=2, launcher="torchrun-on-a-taken-port"),
    "name_resolution": Expected(
        "hostname-resolution",
        ("master-unreachable",),
        processes=1,
        environment={"HOST": "master.invalid"},
    ),
    "master_unreachable": Expected(
        "master-unreachable", processes=1, environment={"HOST": "127.0.0.1"}
    ),
    "ddp_unused": Expected("unused-parameters-ddp"),
    "ddp_twice": Expected("ddp-param-ready-twice"),
    "files": Expected("fd-limit", rank=1),
    "memory": Expected("host-oom-killed", ("python-exception-on-one-rank",), rank=1),
    "loader_killed": Expected("dataloader-worker-died", rank=1),
    "loader_shm": Expected("shm-too-small", ("dataloader-worker-died",), shm_bytes=1 << 20),
    "disk_full": Expected(
        "checkpoint-io-slow-timeout", ("checkpoint-folder-unusable",), rank=0, shm_bytes=1 << 20
    ),
    "checkpoint_cut": Expected("checkpoint-corrupt", ("python-exception-all-ranks",)),
    "nan": Expected("mixed-precision-nan"),
    "shape": Expected("collective-mismatch", ("mismatched-shape",), rank=2),
    "dtype": Expected("collective-mismatch", ("mismatched-dtype",)),
    "detail": Expected("collective-mismatch", environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
    "monitored_barrier": Expected("rank-missing-collective", rank=1),
    "sleeps": Expected("rank-missing-collective", LATE),
    "uneven": Expected("uneven-inputs", (*LATE, "peer-lost")),
    "leaves": Expected("rank-exits-early", (*LATE, "peer-lost")),
    "prepares": Expected("rank0-long-work-timeout", rank=0),
    "healthy": Expected(HEALTHY),
    "healthy_noise": Expected(HEALTHY),
    "healthy_spike": Expected(HEALTHY),
    "healthy_retry": Expected(HEALTHY),
    "shard_unreadable": Expected(
        "python-exception-on-one-rank", rank=1, launcher="torchrun-with-folders"
    ),
    "address_space": Expected(
        "host-oom-killed",
        ("python-exception-on-one-rank",),
        rank=1,
        options=("--standalone", "--tee=3"),
    ),
    "cgroup_memory": Expected("host-oom-killed", rank=2, kernel_log=True),
    "node_killed": Expected("peer-lost", processes=2, launcher="nodes", options=()),
    "waits_for_nodes": Expected(
        "store-wait",
        ("master-unreachable",),
        processes=2,
        launcher="first-node-alone",
        options=("--rdzv-conf=timeout=12",),
    ),
    "wrong_endpoint": Expected(
        "master-unreachable",
        program="waits_for_nodes",
        options=(
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=127.0.0.1:29544",
            "--nnodes=2",
            "--rdzv-conf=is_host=0,read_timeout=8",
        ),
    ),
    "wrong_port": Expected("master-unreachable", rank=1, launcher="ranks"),
    "wrong_world_size": Expected("store-wait", rank=3, launcher="ranks"),
    "recovers": Expected(HEALTHY, options=("--standalone", "--max-restarts=2")),
    "restarts_on_stale_store": Expected(
        "stale-rendezvous-store",
        ("python-exception-on-one-rank",),
        options=("--standalone", "--max-restarts=2"),
    ),
    "restarts_exhausted": Expected(
        "python-exception-on-one-rank",
        ("stale-rendezvous-store",),
        rank=1,
        options=("--standalone", "--max-restarts=1"),
    ),
    "spawned_raises": Expected(
        "python-exception-on-one-rank",
        rank=1,
        program="spawned",
        launcher="python",
        arguments=("raises",),
    ),
    "spawned_killed": Expected(
        "rank-killed",
        ("host-oom-killed",),
        rank=1,
        program="spawned",
        launcher="python",
        arguments=("killed",),
    ),
    "spawned_segfault": Expected(
        "segfault-in-worker", rank=1, program="spawned", launcher="python", arguments=("segfault",)
    ),
    "finished_then_terminated": Expected(HEALTHY, signal_after_s=12.0),
    "guarded_detail": Expected(
        "rank-guarded-collective",
        ("collective-mismatch", "mismatched-operation", "mismatched-shape"),
        rank=0,
        program="validates_on_rank_0",
        environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
    ),
    "guarded": Expected(
        "rank-guarded-collective",
        ("rank-missing-collective", "collective-mismatch"),
        program="validates_on_rank_0",
    ),
    "preprocesses": Expected(
        "rank-missing-collective",
        LATE,
        rank=2,
        environment={"TORCH_CPP_LOG_LEVEL": "INFO", "TORCH_DISTRIBUTED_DEBUG": "INFO"},
    ),
    "healthy_info": Expected(
        HEALTHY,
        program="healthy",
        environment={"TORCH_CPP_LOG_LEVEL": "INFO", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
    ),
    "store_key": Expected("store-wait"),
    "data_on_one_node": Expected(
        "python-exception-on-one-rank", rank=1, processes=1, launcher="nodes", options=()
    ),
    "resumes": Expected("python-exception-all-ranks", ("checkpoint-of-another-model",)),
    "interrupted": Expected(
        "signal-sigterm-preempted", program="steps", signal_after_s=9.0, signal=signal.SIGINT
    ),
    "healthy_words": Expected(HEALTHY),
    "healthy_batch_size": Expected(HEALTHY),
    "barrier_retried": Expected("rank-missing-collective", ("watchdog-timeout-straggler",), rank=1),
    "exits_nonzero": Expected("exit-nonzero", rank=1),
    "aborts": Expected("segfault-in-worker", rank=2),
    "bus_error": Expected("segfault-in-worker", ("shm-too-small",), rank=1),
    "cache_race": Expected(
        "model-download-race", ("python-exception-on-one-rank",), rank=1, processes=2
    ),
    "last_rank_raises": Expected(
        "python-exception-on-one-rank", rank=3, processes=2, launcher="nodes", options=("--tee=3",)
    ),
}
