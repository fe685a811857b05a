"""Settings: defaults, then the file that the job script names, then variables that it exports."""
import json
import os
from dataclasses import dataclass, fields, replace
from typing import Optional

PREFIX = "JOB_"


@dataclass(frozen=True)
class Config:
    lr: float = 5e-3
    steps: int = 40
    accumulate: int = 2
    timeout_s: int = 600
    log_every: int = 10
    average_at_end: bool = True
    trace_from: Optional[str] = None


def _cast(kind, text: str):
    if kind is bool:
        return text.strip().lower() in ("1", "true", "yes", "on")
    return kind(text) if kind in (int, float) else text


def load_config() -> Config:
    cfg = Config()
    path = os.environ.get(PREFIX + "CONFIG")
    if path is not None:
        with open(path) as f:
            cfg = replace(cfg, **json.load(f))
    changes = {}
    for f in fields(Config):
        text = os.environ.get(PREFIX + f.name.upper())
        if text is not None:
            changes[f.name] = _cast(f.type, text)
    return replace(cfg, **changes)
