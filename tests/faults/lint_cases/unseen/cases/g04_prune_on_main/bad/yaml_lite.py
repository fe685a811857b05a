"""Flat metadata files; a subset of YAML that needs no dependency."""
import json


def dump(mapping, path):
    path.write_text("".join(f"{k}: {json.dumps(v)}\n" for k, v in mapping.items()))


def load(path):
    rows = (line.split(": ", 1) for line in path.read_text().splitlines() if line)
    return {k: json.loads(v) for k, v in rows}
