"""Fixtures: a real S3 server in its own process, and checkpoint folders with manifests."""

import itertools
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from holdfast.core import checkpoint_manifest
from holdfast.core.checkpoint_manifest import Manifest, ManifestEntry
from tests.ports import free_port

_numbers = itertools.count()


def write_checkpoint(root, step, *, values=None, files=3, size=5000):
    """Write a committed checkpoint with random files; return its folder."""
    folder = root / checkpoint_manifest.folder_name(step)
    (folder / "deep").mkdir(parents=True)
    entries = []
    for number in range(files):
        name = f"deep/{number}.distcp" if number else "first.distcp"
        (folder / name).write_bytes(bytes([step % 251, number]) * size)
        entries.append(
            ManifestEntry(
                path=name, size=2 * size, xxh3=checkpoint_manifest.hash_file(folder / name)
            )
        )
    checkpoint_manifest.write_manifest(
        folder, Manifest(step=step, ranks=1, files=tuple(entries), values=values or {})
    )
    return folder


@pytest.fixture
def checkpoint(tmp_path):
    """Return ``checkpoint(step, …)``, which writes a checkpoint to ``tmp_path/ckpts``."""

    def make(step, root=None, **options):
        return write_checkpoint(root or tmp_path / "ckpts", step, **options)

    return make


class S3:
    """moto's S3 server; ``url`` is unique to the test. It can be stopped and restarted on the same port."""

    def __init__(self, folder, monkeypatch):
        self.port = free_port()
        self._folder = folder
        self.endpoint = f"http://127.0.0.1:{self.port}"
        for name, text in {
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "y",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_MAX_ATTEMPTS": "1",
        }.items():
            monkeypatch.setenv(name, text)
        self.process, self.url = None, ""
        self.start()

    def start(self):
        with (self._folder / "s3.txt").open("ab") as log:
            command = [
                sys.executable,
                "-W",
                "ignore",
                "-m",
                "moto.server",
                "-H",
                "127.0.0.1",
                "-p",
                str(self.port),
            ]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ)
        until = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{self.endpoint}/moto-api/data.json", timeout=5).close()
                break
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                assert time.monotonic() < until, (self._folder / "s3.txt").read_text()
                assert self.process.poll() is None, (self._folder / "s3.txt").read_text()
                time.sleep(0.1)
        urllib.request.urlopen(
            urllib.request.Request(f"{self.endpoint}/bucket", method="PUT"), timeout=5
        ).close()
        return self

    def end(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="session")
def _s3_server(tmp_path_factory):
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    pytest.importorskip("flask", reason="moto's server needs flask")
    with pytest.MonkeyPatch.context() as patch:  # for the session: fsspec caches its clients
        server = S3(tmp_path_factory.mktemp("s3"), patch)
        yield server
        server.end()


@pytest.fixture
def s3(_s3_server):
    _s3_server.url = f"s3://bucket/run/{next(_numbers)}"
    if _s3_server.process.poll() is not None:
        _s3_server.start()
    return _s3_server
