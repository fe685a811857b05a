"""Manifests of Kubernetes: valid by the published schemas, and with the settings that matter."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from holdfast.core.errors import InvalidValue
from holdfast.launcher.submission.kubernetes import jobset_manifest, train_job_manifest
from holdfast.launcher.submission.pod import CHECKPOINTS, KubernetesRequest
from holdfast.launcher.submission.request import JobRequest

SCHEMAS = Path(__file__).parents[3] / "golden" / "kubernetes"
TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "boolean": bool,
    "number": (int, float),
}


def request(**more):
    job = {
        "name": "train",
        "run_words": ("--max-restarts", "3", "/app/train.py"),
        "nodes": 4,
        "workers": 8,
    }
    options = {
        "image": "registry/train:1",
        "claim": "shared",
        "gpus": 8,
        "cpus": "64",
        "memory": "512Gi",
    }
    fields = {**job, "python": "python", "checkpoints": CHECKPOINTS, **more}
    return KubernetesRequest(job=JobRequest(**fields), **options)


def problems(value, schema, path=""):
    """Yield what the schema of a CRD forbids; unknown fields, too, as `kubectl --validate=strict`."""
    kinds = schema.get("type", [])
    types = tuple(TYPES[each] for each in ([kinds] if isinstance(kinds, str) else kinds))
    if types and (not isinstance(value, types) or (isinstance(value, bool) and bool not in types)):
        yield f"{path}: {value!r} is not of type {kinds}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} is none of {schema['enum']}"
    if "pattern" in schema and not re.search(schema["pattern"], str(value)):
        yield f"{path}: {value!r} does not match {schema['pattern']}"
    if "minimum" in schema and value < schema["minimum"]:
        yield f"{path}: {value} is too small"
    if isinstance(value, dict):
        yield from (
            f"{path}: no {name}" for name in schema.get("required", ()) if name not in value
        )
        names, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name, each in value.items():
            inner = names.get(name, others)
            if inner is None and (names or others):
                yield f"{path}: unknown field {name}"
            else:
                yield from problems(each, inner or {}, f"{path}.{name}")
    for at, each in enumerate(value if isinstance(value, list) else ()):
        yield from problems(each, schema.get("items", {}), f"{path}[{at}]")


def validated(text):
    """Return the objects of the manifest by kind; each is valid by its published schema."""
    objects = list(yaml.safe_load_all(text))
    for each in objects:
        published = json.loads((SCHEMAS / f"{each['kind']}.json").read_text())
        assert each["apiVersion"].endswith(f"/{published['version']}")
        assert list(problems(each, published["schema"])) == []
    return {each["kind"]: each for each in objects}


def pod_of(spec):
    return spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize("write", [jobset_manifest, train_job_manifest])
def test_manifests_are_valid(write, gate):
    validated(write(request(gate=gate, environment=(("NCCL_DEBUG", "WARN"),))))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("parallelism: 4", "parallelism: four"), "'four' is not of type integer"),
        (("completionMode", "completeMode"), "unknown field completeMode"),
        (("RestartJobSetAndIgnoreMaxRestarts", "Restart"), "'Restart' is none of"),
        (("claimName", "claim"), "no claimName"),
    ],
)
def test_invalid_manifests_are_detected(change, problem):
    schema = json.loads((SCHEMAS / "JobSet.json").read_text())["schema"]
    found = "\n".join(problems(yaml.safe_load(jobset_manifest(request()).replace(*change)), schema))
    assert problem in found


def test_the_nodes_of_a_jobset_meet_at_the_leaders_service():
    spec = validated(jobset_manifest(request()))["JobSet"]["spec"]
    (container,) = pod_of(spec)["containers"]
    assert (
        container["command"]
        == (
            "python -m holdfast run --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-id train "
            "--rdzv-endpoint train-node-0-0.train:29500 --max-restarts 3 /app/train.py"
        ).split()
    )
    assert spec["network"]["subdomain"] == "train"
    assert spec["network"]["publishNotReadyAddresses"] is True
    assert spec["coordinator"] == {"replicatedJob": "node", "jobIndex": 0, "podIndex": 0}


def test_pods_have_time_to_save_probes_and_a_volume():
    pod = pod_of(validated(jobset_manifest(request(warning_s=300)))["JobSet"]["spec"])
    (container,), (gate,) = pod["containers"], pod["initContainers"]
    assert pod["terminationGracePeriodSeconds"] == 300
    assert {"name": "HOLDFAST_GRACE_S", "value": "290"} in container["env"]
    assert {"name": "checkpoints", "mountPath": "/checkpoints"} in container["volumeMounts"]
    assert {"startupProbe", "livenessProbe"} <= container.keys()
    assert gate["command"][3:] == [
        "check",
        "--nproc-per-node",
        "8",
        "--checkpoints",
        "/checkpoints",
    ]


def test_status_93_ends_the_job_and_an_eviction_counts_as_no_failure():
    spec = validated(jobset_manifest(request()))["JobSet"]["spec"]
    rules = spec["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"]
    assert rules[0]["onExitCodes"]["values"] == [93]
    no_progress, evicted = spec["failurePolicy"]["rules"]
    # What the Job controller writes into the condition of a failed Job.
    message = "Container node for pod ml/train-0 failed with exit code {} matching FailJob rule at index 0"
    (pattern,) = no_progress["onJobFailureMessagePatterns"]
    assert re.search(pattern, message.format(93))
    assert not re.search(pattern, message.format(1))
    (pattern,) = evicted["onJobFailureMessagePatterns"]
    assert re.search(
        pattern, "Pod ml/train-0 has condition DisruptionTarget matching FailJob rule at index 1"
    )
    assert (no_progress["action"], evicted["action"]) == (
        "FailJobSet",
        "RestartJobSetAndIgnoreMaxRestarts",
    )


def test_a_train_job_takes_its_size_from_the_trainers_variables():
    objects = validated(train_job_manifest(request()))
    pod = pod_of(objects["TrainingRuntime"]["spec"]["template"]["spec"])
    assert "--nnodes" not in pod["containers"][0]["command"]
    assert objects["TrainJob"]["spec"]["trainer"] == {"numNodes": 4, "numProcPerNode": 8}
    assert objects["TrainJob"]["spec"]["runtimeRef"]["name"] == "train"


def test_empty_names_are_refused():
    with pytest.raises(InvalidValue, match="--claim: it is empty"):
        KubernetesRequest(job=JobRequest(name="a", run_words=("a.py",)), image="i", claim=" ")
