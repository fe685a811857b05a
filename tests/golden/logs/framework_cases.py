"""Cases of Accelerate, Transformers, Lightning, DeepSpeed, Ray and Slurm."""

from __future__ import annotations

import signal

from tests.golden.logs.case import HEALTHY, LATE, Expected

_ACCELERATE = {
    "program": "accelerate_training",
    "launcher": "accelerate",
    "options": (),
    "needs": ("accelerate",),
}
_TRAINER = {"program": "trainer_training", "needs": ("transformers", "accelerate")}
_LIGHTNING = {"program": "lightning_training", "launcher": "python", "needs": ("lightning",)}
_DEEPSPEED = {
    "program": "deepspeed_training",
    "launcher": "deepspeed",
    "options": (),
    "needs": ("deepspeed",),
}
_RAY = {
    "launcher": "python",
    "needs": ("ray",),
    "environment": {
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
    },
}

OF_FRAMEWORKS: dict[str, Expected] = {
    "accelerate_healthy": Expected(HEALTHY, arguments=("healthy",), **_ACCELERATE),
    "accelerate_raises": Expected(
        "python-exception-on-one-rank", rank=1, arguments=("raises",), **_ACCELERATE
    ),
    "accelerate_uneven": Expected(
        "uneven-inputs", LATE, rank=2, arguments=("uneven",), **_ACCELERATE
    ),
    "accelerate_guarded": Expected(
        "rank-guarded-collective",
        ("rank-missing-collective", "collective-mismatch"),
        arguments=("guarded",),
        **_ACCELERATE,
    ),
    "accelerate_killed": Expected(
        "rank-killed", ("host-oom-killed",), rank=1, arguments=("killed",), **_ACCELERATE
    ),
    "accelerate_leaves": Expected(
        "rank-exits-early", ("peer-lost",), rank=1, arguments=("leaves",), **_ACCELERATE
    ),
    "accelerate_loader": Expected(
        "dataloader-worker-died", rank=1, arguments=("loader",), **_ACCELERATE
    ),
    "accelerate_state": Expected(
        "python-exception-all-ranks",
        ("checkpoint-of-another-model",),
        arguments=("state",),
        **_ACCELERATE,
    ),
    "trainer_healthy": Expected(HEALTHY, arguments=("healthy",), **_TRAINER),
    "trainer_raises": Expected(
        "python-exception-on-one-rank", rank=1, arguments=("raises",), **_TRAINER
    ),
    "trainer_nan": Expected("mixed-precision-nan", arguments=("nan",), **_TRAINER),
    "trainer_killed": Expected(
        "rank-killed", ("host-oom-killed",), rank=2, arguments=("killed",), **_TRAINER
    ),
    "trainer_config": Expected("python-exception-all-ranks", arguments=("config",), **_TRAINER),
    "trainer_cut": Expected(
        "checkpoint-corrupt", ("python-exception-all-ranks",), arguments=("cut",), **_TRAINER
    ),
    "trainer_missing": Expected(
        "python-exception-all-ranks", ("checkpoint-corrupt",), arguments=("missing",), **_TRAINER
    ),
    "trainer_disk": Expected(
        "checkpoint-io-slow-timeout",
        ("checkpoint-folder-unusable",),
        rank=0,
        arguments=("disk",),
        shm_bytes=200 << 10,
        **_TRAINER,
    ),
    "trainer_preempted": Expected(
        "signal-sigterm-preempted", arguments=("slow",), signal_after_s=25.0, **_TRAINER
    ),
    "tokenizer_on_one_node": Expected(
        "python-exception-on-one-rank",
        ("model-download-race",),
        rank=1,
        processes=1,
        launcher="nodes",
        options=(),
        needs=("transformers",),
    ),
    "lightning_healthy": Expected(HEALTHY, arguments=("healthy",), **_LIGHTNING),
    "lightning_raises": Expected(
        "python-exception-on-one-rank", rank=1, arguments=("raises",), **_LIGHTNING
    ),
    "lightning_uneven": Expected("uneven-inputs", LATE, arguments=("uneven",), **_LIGHTNING),
    "lightning_slow": Expected(
        "watchdog-timeout-straggler",
        ("rank-missing-collective",),
        rank=1,
        arguments=("slow",),
        **_LIGHTNING,
    ),
    "lightning_guarded": Expected(
        "rank-guarded-collective",
        ("rank-missing-collective", "collective-mismatch"),
        arguments=("guarded",),
        **_LIGHTNING,
    ),
    "lightning_nan": Expected("mixed-precision-nan", arguments=("nan",), **_LIGHTNING),
    "lightning_killed": Expected(
        "peer-lost", ("rank-killed", "host-oom-killed"), rank=1, arguments=("killed",), **_LIGHTNING
    ),
    "lightning_state": Expected(
        "python-exception-all-ranks",
        ("checkpoint-of-another-model",),
        arguments=("state",),
        **_LIGHTNING,
    ),
    "lightning_config": Expected("python-exception-all-ranks", arguments=("config",), **_LIGHTNING),
    "lightning_interrupted": Expected(
        "signal-sigterm-preempted",
        arguments=("interrupted",),
        signal_after_s=40.0,
        signal=signal.SIGINT,
        **_LIGHTNING,
    ),
    "deepspeed_healthy": Expected(HEALTHY, arguments=("healthy",), **_DEEPSPEED),
    "deepspeed_raises": Expected(
        "python-exception-on-one-rank", rank=1, arguments=("raises",), **_DEEPSPEED
    ),
    "deepspeed_killed": Expected(
        "rank-killed", ("host-oom-killed",), rank=2, arguments=("killed",), **_DEEPSPEED
    ),
    "deepspeed_config": Expected(
        "python-exception-all-ranks", ("comm-config-bad",), arguments=("config",), **_DEEPSPEED
    ),
    "ray_actor_healthy": Expected(HEALTHY, program="ray_actors", arguments=("healthy",), **_RAY),
    "ray_actor_raises": Expected(
        "python-exception-on-one-rank", rank=1, program="ray_actors", arguments=("raises",), **_RAY
    ),
    "ray_actor_killed": Expected(
        "rank-killed",
        ("host-oom-killed", "peer-lost"),
        rank=1,
        program="ray_actors",
        arguments=("killed",),
        **_RAY,
    ),
    "ray_memory": Expected("host-oom-killed", **_RAY),
    "ray_train_healthy": Expected(HEALTHY, program="ray_training", arguments=("healthy",), **_RAY),
    "ray_train_raises": Expected(
        "python-exception-on-one-rank",
        rank=1,
        program="ray_training",
        arguments=("raises",),
        **_RAY,
    ),
    "slurm_healthy": Expected(HEALTHY, program="steps", launcher="srun", options=()),
    "slurm_raises": Expected(
        "python-exception-on-one-rank",
        rank=1,
        program="exception_on_one",
        launcher="srun",
        options=(),
    ),
    "slurm_killed": Expected(
        "rank-killed", ("host-oom-killed",), rank=2, program="killed", launcher="srun", options=()
    ),
    "slurm_memory": Expected("host-oom-killed", rank=1, launcher="srun", options=("--mem=1500M",)),
    "slurm_time_limit": Expected(
        "signal-sigterm-preempted",
        program="terminated",
        launcher="sbatch",
        options=("--time=0:30",),
    ),
    "slurm_cancelled": Expected("signal-sigterm-preempted", launcher="sbatch", options=()),
    "slurm_leaves": Expected(
        "rank-exits-early", ("peer-lost",), rank=1, program="leaves", launcher="srun", options=()
    ),
    "slurm_segfault": Expected(
        "segfault-in-worker", rank=1, program="segfault", launcher="srun", options=()
    ),
    "slurm_one_node_raises": Expected(
        "python-exception-on-one-rank",
        rank=1,
        program="restarts_exhausted",
        launcher="sbatch",
        options=(),
    ),
    "deepspeed_interrupted": Expected(
        "signal-sigterm-preempted",
        arguments=("slow",),
        signal_after_s=35.0,
        signal=signal.SIGINT,
        **_DEEPSPEED,
    ),
    "accelerate_batch_size": Expected(HEALTHY, arguments=("batch",), **_ACCELERATE),
    "ray_restarts": Expected(HEALTHY, **_RAY),
}
