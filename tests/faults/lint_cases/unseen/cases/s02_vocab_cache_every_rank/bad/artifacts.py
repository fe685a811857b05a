"""Small disk cache for things that are expensive to derive from the corpus."""
import contextlib
import functools
import hashlib
import json
import logging
import os
import pathlib
import time

import torch.distributed as dist

log = logging.getLogger(__name__)


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


def is_main():
    return rank() == 0


def sync():
    if world() > 1:
        dist.barrier()


@contextlib.contextmanager
def main_first():
    """Let the main process go through the block before the others."""
    if not is_main():
        sync()
    yield
    if is_main():
        sync()


def fingerprint(cfg):
    blob = json.dumps({k: str(v) for k, v in sorted(vars(cfg).items())})
    return hashlib.sha1(blob.encode()).hexdigest()[:10]


class Json:
    suffix = ".json"

    @staticmethod
    def dump(obj, path):
        with open(path, "w") as fh:
            json.dump(obj, fh)

    @staticmethod
    def load(path):
        return json.loads(pathlib.Path(path).read_text())


def cached(stem, codec=Json):
    """Decorator: keep the return value of ``build(cfg)`` below ``cfg.cache_dir``."""

    def decorate(build):
        @functools.wraps(build)
        def wrapper(cfg):
            target = pathlib.Path(cfg.cache_dir) / f"{stem}-{fingerprint(cfg)}{codec.suffix}"
            if not target.exists():
                started = time.monotonic()
                value = build(cfg)
                scratch = target.with_suffix(".part")
                codec.dump(value, scratch)  # EXPECT: fs-race
                os.replace(scratch, target)
                log.info("built %s in %.2fs", target.name, time.monotonic() - started)
            return codec.load(target)

        return wrapper

    return decorate
