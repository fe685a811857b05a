"""The ``holdfast plan`` command line of a setup, so that a user can try an alternative at once."""

from __future__ import annotations

import shlex

from holdfast.plan.request.plan_request import PlanRequest
from holdfast.plan.setup import LossKernel, OffloadTarget, OptimizerKind, TrainingSetup

_DEGREES = ("tensor", "pipeline", "context", "expert", "replicas", "chunks")


def plan_command(request: PlanRequest, setup: TrainingSetup) -> str:
    """Return ``holdfast plan …`` with every option that selects this setup."""
    arguments = [
        "holdfast",
        "plan",
        *request.model.arguments,
        "--on",
        _format_cluster(request, setup),
        "--sequence",
        str(setup.sequence),
        "--strategy",
        setup.strategy,
    ]
    arguments += [
        argument
        for name in _DEGREES
        if (degree := getattr(setup, name)) > 1
        for argument in (f"--{name}", str(degree))
    ]
    if len(request.clusters) > 1:
        arguments += ["--batch", str(request.batch)]
    else:
        arguments += [
            "--micro-batch",
            str(setup.micro_batch),
            "--accumulation",
            str(setup.accumulation),
        ]
    arguments += ["--recompute", setup.recompute]
    for name, value, default in (
        ("optimizer", setup.optimizer, OptimizerKind.ADAMW),
        ("offload", setup.offload, OffloadTarget.NONE),
        ("loss", setup.loss, LossKernel.EAGER),
    ):
        arguments += [f"--{name}", value] if value is not default else []
    arguments += ["--reduce", "16-bit"] if request.reduce_16_bits else []
    if request.first_cluster.host_gib:
        arguments += ["--host-memory", f"{request.first_cluster.host_gib:g}"]
    arguments += ["--schedule", setup.schedule] if setup.pipeline > 1 else []
    arguments += ["--precision", request.precision] if request.precision != "auto" else []
    flags = {
        "--no-flash": not setup.flash,
        "--compiled": setup.compiled,
        "--fused-optimizer": setup.fused_optimizer,
        "--bucket-views": setup.bucket_views,
        "--no-reshard": not setup.reshard,
        "--balanced": request.balanced,
        "--async-tensor": request.async_tensor,
        "--unfused-norms": not request.fused_norms,
    }
    arguments += [flag for flag, is_set in flags.items() if is_set]
    return shlex.join(arguments)


def _format_cluster(request: PlanRequest, setup: TrainingSetup) -> str:
    return (
        request.cluster_text
        if setup.world_size == request.gpus
        else str(request.first_cluster.resized(setup.world_size))
    )
