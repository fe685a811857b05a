"""``holdfast submit kubernetes``: write and submit a JobSet or a TrainJob."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.general_options import GroupedCommand
from holdfast.cli.submit import job_options

_OPTION_GROUPS = {
    "Kubernetes": "image claim kind namespace gpus gpu-resource cpus memory shared-memory restarts",
}


@click.command(
    cls=GroupedCommand,
    groups=_OPTION_GROUPS,
    context_settings={"allow_interspersed_args": False},
)
@click.option("--image", required=True, help="Image with torch, holdfast and the script.")
@click.option(
    "--claim",
    metavar="NAME",
    required=True,
    help="PersistentVolumeClaim that all nodes can mount; it is mounted at /checkpoints.",
)
@click.option(
    "--kind",
    type=click.Choice(["jobset", "trainjob"]),
    default="jobset",
    show_default=True,
    help="A JobSet, or a TrainJob and its TrainingRuntime for Kubeflow's trainer.",
)
@click.option("--namespace", metavar="NAME", default="", help="Namespace.")
@click.option(
    "--gpus",
    metavar="N",
    type=click.IntRange(0),
    default=0,
    help="GPUs of each node [default: none].",
)
@click.option("--gpu-resource", default="nvidia.com/gpu", show_default=True, help="Their resource.")
@click.option("--cpus", metavar="N", default="", help="CPUs of each node.")
@click.option("--memory", metavar="SIZE", default="", help="Memory of each node, e.g. 900Gi.")
@click.option(
    "--shared-memory",
    metavar="SIZE",
    default="16Gi",
    show_default=True,
    help="Size of /dev/shm; it counts as memory.",
)
@click.option(
    "--restarts",
    metavar="N",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help="Restarts of all pods after failures; evictions are not counted.",
)
@click.option("--python", default="python", show_default=True, help="Python of the image.")
@job_options.options
def command(*, kind: str, python: str, **chosen: Any) -> int:
    """Submit a job to Kubernetes that runs SCRIPT with `holdfast run` in one pod per node.

    Before the start each node is checked in an init container. When a pod is evicted, the workers
    have time to save. SCRIPT is a path in the image. --dry-run prints the manifest.
    """
    from holdfast.launcher.submission import kubernetes, pod
    from holdfast.launcher.submission.request import JobRequest

    script = job_options.script_of(chosen["words"], on_this_host=False)
    fields = job_options.job_fields(chosen, script)
    job = JobRequest(
        checkpoints=pod.CHECKPOINTS,
        runs=f"{pod.CHECKPOINTS}/holdfast-runs",
        python=python,
        **fields,
    )
    more = {name: chosen[name] for name in pod.KubernetesRequest.__struct_fields__ if name != "job"}
    request = pod.KubernetesRequest(job=job, **more)
    write = kubernetes.jobset_manifest if kind == "jobset" else kubernetes.train_job_manifest
    return job_options.finish("Kubernetes", write(request), chosen, kubernetes.submit_to_kubernetes)
