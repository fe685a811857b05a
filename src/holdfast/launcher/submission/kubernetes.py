"""Kubernetes: manifests of a JobSet, and of a TrainJob with its runtime; submission by ``kubectl``.

Sources: the schemas of jobset.x-k8s.io/v1alpha2 and trainer.kubeflow.org/v1alpha1, against which
the tests validate the manifests.
"""

from __future__ import annotations

from typing import Any

import yaml

from holdfast.launcher.submission import pod
from holdfast.launcher.submission.pod import KubernetesRequest
from holdfast.launcher.submission.programs import run_program

#: Name of the replicated job; Kubeflow's trainer requires this name, for the container too.
_NODE = "node"


def jobset_manifest(request: KubernetesRequest) -> str:
    """Return the YAML of a JobSet, whose headless service resolves the first node's name."""
    name = request.job.name
    leader = f"{name}-{_NODE}-0-0.{name}"
    rendezvous = ("--rdzv-backend", "c10d", "--rdzv-id", name)
    endpoint = ("--rdzv-endpoint", f"{leader}:{pod.PORT}")
    manifest = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": pod.metadata(request),
        "spec": {
            "network": {
                "enableDNSHostnames": True,
                "publishNotReadyAddresses": True,
                "subdomain": name,
            },
            "coordinator": {"replicatedJob": _NODE, "jobIndex": 0, "podIndex": 0},
            "failurePolicy": pod.restart_policy(request),
            "replicatedJobs": [_replicated_job(request, (*rendezvous, *endpoint))],
        },
    }
    return _dump(manifest)


def train_job_manifest(request: KubernetesRequest) -> str:
    """Return the YAML of a TrainJob and of its TrainingRuntime.

    The runtime contains what a TrainJob cannot express: probes, grace period, gate and volumes. The
    trainer sets torchrun's variables (``PET_NNODES``, ``PET_MASTER_ADDR``, …) and the leader's
    service.
    """
    job = request.job
    group_name = "trainer.kubeflow.org"
    replicated = _replicated_job(request, ())
    replicated["template"]["metadata"] = {
        "labels": {f"{group_name}/trainjob-ancestor-step": "trainer"}
    }
    policy = {"numNodes": job.nodes, "torch": {}}
    runtime = {
        "apiVersion": f"{group_name}/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {**pod.metadata(request), "labels": {f"{group_name}/framework": "torch"}},
        "spec": {
            "mlPolicy": policy,
            "template": {
                "spec": {
                    "failurePolicy": pod.restart_policy(request),
                    "replicatedJobs": [replicated],
                }
            },
        },
    }
    train_job = {
        "apiVersion": f"{group_name}/v1alpha1",
        "kind": "TrainJob",
        "metadata": pod.metadata(request),
        "spec": {
            "runtimeRef": {"apiGroup": group_name, "kind": "TrainingRuntime", "name": job.name},
            "trainer": {"numNodes": job.nodes, "numProcPerNode": job.workers},
        },
    }
    return _dump(runtime, train_job)


def _replicated_job(request: KubernetesRequest, rendezvous: tuple[str, ...]) -> dict[str, Any]:
    """Return one indexed Job with a pod per node.

    Without ``rendezvous``, the numbers of nodes and workers come from the trainer's variables.
    """
    job = request.job
    size = ("--nnodes", str(job.nodes), "--nproc-per-node", str(job.workers)) if rendezvous else ()
    command = [job.python, "-m", "holdfast", "run", *size, *rendezvous, *job.run_words]
    return {
        "name": _NODE,
        "replicas": 1,
        "template": {
            "spec": {
                "parallelism": job.nodes,
                "completions": job.nodes,
                "completionMode": "Indexed",
                "backoffLimit": 0,
                "podFailurePolicy": {"rules": pod.failure_rules(_NODE)},
                "template": {"spec": pod.pod_spec(request, command, _NODE)},
            }
        },
    }


def _dump(*manifests: dict[str, Any]) -> str:
    text: str = yaml.safe_dump_all(manifests, sort_keys=False, width=100)
    return text


def submit_to_kubernetes(manifest: str) -> str:
    """Create the objects; return what ``kubectl`` reports, separated by commas.

    Raises:
        MissingFile: there is no ``kubectl``.
        SubmissionRefused: the API server refused the manifest, or does not answer.
    """
    return ", ".join(
        run_program(("kubectl", "create", "-f", "-"), manifest, "Kubernetes").splitlines()
    )
