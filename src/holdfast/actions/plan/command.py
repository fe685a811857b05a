"""The command line that plans a setup: what is said of an alternative can be tried at once."""

from __future__ import annotations

import shlex

from holdfast.actions.plan.wish import Wish
from holdfast.plan.setup import Loss, Offload, Optimizer, Setup

_DEGREES = ("tensor", "pipeline", "context", "expert", "replicas", "chunks")


def command(wish: Wish, setup: Setup) -> str:
    """``holdfast plan …`` with every option that makes this setup."""
    words = ["holdfast", "plan", *wish.model.asked, "--on", _cluster(wish, setup), "--sequence", str(setup.sequence),
             "--strategy", setup.strategy]  # fmt: skip
    words += [word for name in _DEGREES if (degree := getattr(setup, name)) > 1 for word in (f"--{name}", str(degree))]
    if len(wish.parts) > 1:
        words += ["--batch", str(wish.batch)]
    else:
        words += ["--micro-batch", str(setup.micro_batch), "--accumulation", str(setup.accumulation)]
    words += ["--recompute", setup.recompute]
    for name, value, usual in (
        ("optimizer", setup.optimizer, Optimizer.ADAMW), ("offload", setup.offload, Offload.NONE),
        ("loss", setup.loss, Loss.EAGER),
    ):  # fmt: skip
        words += [f"--{name}", value] if value is not usual else []
    words += ["--schedule", setup.schedule] if setup.pipeline > 1 else []
    words += ["--precision", wish.precision] if wish.precision != "auto" else []
    flags = {
        "--no-flash": not setup.flash, "--compiled": setup.compiled, "--fused-optimizer": setup.fused_optimizer,
        "--bucket-views": setup.bucket_views, "--no-reshard": not setup.reshard,
    }  # fmt: skip
    words += [flag for flag, there in flags.items() if there]
    return shlex.join(words)


def _cluster(wish: Wish, setup: Setup) -> str:
    return wish.on if setup.world_size == wish.gpus else str(wish.cluster.resized(setup.world_size))
