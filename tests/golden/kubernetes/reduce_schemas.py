"""Reduce published schemas to names, types and limits of fields: ``reduce_schemas.py JOBSET TRAINER``.

The arguments are checkouts of kubernetes-sigs/jobset and kubeflow/trainer (README.md has their
versions). Objects that our manifests do not use keep their type only.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import yaml

HERE = Path(__file__).parent
KEPT = ("type", "enum", "pattern", "minimum", "maximum", "maxLength", "required")
CRDS = {
    "JobSet": (1, "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"),
    "TrainJob": (2, "manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml"),
    "TrainingRuntime": (2, "manifests/base/crds/trainer.kubeflow.org_trainingruntimes.yaml"),
}


def reduce(schema, used):
    """Return the schema without texts; ``used`` holds the values of manifests at this place."""
    kept = {key: schema[key] for key in KEPT if key in schema}
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"], **kept}
    objects = [value for value in used if isinstance(value, dict)]
    lists = [value for value in used if isinstance(value, list)]
    if "properties" in schema and objects:
        kept["properties"] = {
            name: reduce(each, [value[name] for value in objects if name in value])
            for name, each in schema["properties"].items()
        }
    elif isinstance(schema.get("additionalProperties"), dict):
        values = [each for value in objects for each in value.values()]
        kept["additionalProperties"] = reduce(schema["additionalProperties"], values)
    elif "properties" in schema:
        kept.pop("required", None)
    if "items" in schema and lists:
        kept["items"] = reduce(schema["items"], [each for value in lists for each in value])
    return kept


if __name__ == "__main__":
    manifests = [
        each for path in sys.argv[3:] for each in yaml.safe_load_all(Path(path).read_text())
    ]
    for kind, (argument, path) in CRDS.items():
        (version,) = yaml.safe_load(Path(sys.argv[argument], path).read_text())["spec"]["versions"]
        used = [each for each in manifests if each["kind"] == kind]
        schema = reduce(version["schema"]["openAPIV3Schema"], used)
        text = json.dumps({"version": version["name"], "schema": schema}, indent=1, sort_keys=True)
        (HERE / f"{kind}.json").write_text(text + "\n")
