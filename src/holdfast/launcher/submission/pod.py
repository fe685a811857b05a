"""The pod of one node of a job on Kubernetes: gate, launcher, probes, volumes and time to save."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.errors import InvalidValue
from holdfast.launcher.submission.request import JobRequest

#: Where the checkpoint volume is mounted.
CHECKPOINTS = "/checkpoints"
#: Exit status of `holdfast run` after restarts without progress: another start does not help.
NO_PROGRESS = 93
#: torch's port of the rendezvous.
PORT = 29500
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a mount point in the container
#: The launcher creates this file before the rendezvous, in the pod's own shared memory.
_STARTED = f"ls {_SHARED_MEMORY}/holdfast-*/agent >/dev/null && "
#: The launcher is the first process of the container: neither stopped nor a zombie.
_ALIVE = "! grep -q '^State:.[TtZX]' /proc/1/status"
_PERIOD_S = 10
#: Time for imports and for compiling the recorder.
_START_LIMIT_S = 900


class KubernetesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A job for Kubernetes. ``claim``: a PersistentVolumeClaim that all nodes can mount.

    ``gpus`` per node, of the resource ``gpu_resource``. ``restarts``: how often all pods are
    started again after a failure that `holdfast run` did not recover from.

    Raises:
        InvalidValue: a required value is empty.
    """

    job: JobRequest
    image: str
    claim: str
    namespace: str = ""
    gpus: int = 0
    gpu_resource: str = "nvidia.com/gpu"
    cpus: str = ""
    memory: str = ""
    shared_memory: str = "16Gi"
    restarts: int = 10

    def __post_init__(self) -> None:
        """Reject empty names, which Kubernetes would accept as defaults."""
        for option, text in (("--image", self.image), ("--claim", self.claim)):
            if not text.strip():
                raise InvalidValue(option, why="it is empty", next_step=f"pass {option} NAME")


def pod_spec(request: KubernetesRequest, command: list[str], container: str) -> dict[str, Any]:
    """Return the pod's spec; ``command`` starts the launcher in the container of that name."""
    job = request.job
    gate = [job.python, "-m", "holdfast", "check", *job.check_words]
    return {
        "restartPolicy": "Never",  # the launcher restarts workers; the whole job restarts otherwise
        "terminationGracePeriodSeconds": job.warning_s,
        **({"initContainers": [_container(request, "gate", gate)]} if job.gate else {}),
        "containers": [
            {
                **_container(request, container, command),
                "ports": [{"name": "rendezvous", "containerPort": PORT}],
                "startupProbe": _probe(_STARTED + _ALIVE, _START_LIMIT_S // _PERIOD_S),
                "livenessProbe": _probe(_STARTED + _ALIVE, 6),
            }
        ],
        "volumes": [
            {"name": "checkpoints", "persistentVolumeClaim": {"claimName": request.claim}},
            {
                "name": "shared-memory",
                "emptyDir": {"medium": "Memory", "sizeLimit": request.shared_memory},
            },
        ],
    }


def failure_rules(container: str) -> list[dict[str, Any]]:
    """Return the pod failure policy: fail on status 93, and distinguish evictions from failures."""
    codes = {"containerName": container, "operator": "In", "values": [NO_PROGRESS]}
    return [
        {"action": "FailJob", "onExitCodes": codes},
        {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]


def restart_policy(request: KubernetesRequest) -> dict[str, Any]:
    """Return the JobSet's failure policy; it distinguishes failures by the Job's message."""
    return {
        "maxRestarts": request.restarts,
        "rules": [
            {
                "name": "noProgress",
                "action": "FailJobSet",
                "onJobFailureReasons": ["PodFailurePolicy"],
                "onJobFailureMessagePatterns": [f"exit code {NO_PROGRESS}( |$)"],
            },
            {
                "name": "evicted",
                "action": "RestartJobSetAndIgnoreMaxRestarts",
                "onJobFailureReasons": ["PodFailurePolicy"],
                "onJobFailureMessagePatterns": ["DisruptionTarget"],
            },
        ],
    }


def metadata(request: KubernetesRequest) -> dict[str, Any]:
    """Return name and namespace."""
    namespace = {"namespace": request.namespace} if request.namespace else {}
    return {"name": request.job.name, **namespace}


def _container(request: KubernetesRequest, name: str, command: list[str]) -> dict[str, Any]:
    variables = request.job.variables.items()
    resources = {
        "cpu": request.cpus,
        "memory": request.memory,
        request.gpu_resource: str(request.gpus) if request.gpus else "",
    }
    limits = {each: amount for each, amount in resources.items() if amount}
    return {
        "name": name,
        "image": request.image,
        "command": command,
        "env": [{"name": each, "value": value} for each, value in variables],
        **({"resources": {"requests": limits, "limits": dict(limits)}} if limits else {}),
        "volumeMounts": [
            {"name": "checkpoints", "mountPath": CHECKPOINTS},
            {"name": "shared-memory", "mountPath": _SHARED_MEMORY},
        ],
    }


def _probe(command: str, failures: int) -> dict[str, Any]:
    return {
        "exec": {"command": ["sh", "-c", command]},
        "periodSeconds": _PERIOD_S,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
