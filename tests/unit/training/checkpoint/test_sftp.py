"""Copies on another host over SFTP, with a real sshd started by the test; skipped without sshd."""

import getpass
import os
import shutil
import subprocess
import time

import pytest

from holdfast.core import checkpoint_manifest
from holdfast.core.errors import CheckpointUnreadable
from holdfast.training.checkpoint.storage.backends import open_backend
from tests.ports import free_port

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")
pytest.importorskip("paramiko", reason="paramiko is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        SSHD is None or shutil.which("ssh-keygen") is None, reason="sshd is not installed"
    ),
]


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Return an ``sftp://…`` URL of this machine, which emulates another host."""
    port = free_port()
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True
        )
    (tmp_path / "allowed").write_text((tmp_path / "user.pub").read_text())
    (tmp_path / "sshd.conf").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/allowed\n"
        f"PidFile {tmp_path}/sshd.pid\nStrictModes no\nUsePAM no\nPermitRootLogin yes\nSubsystem sftp internal-sftp\n"
    )
    with (tmp_path / "log").open("wb") as log:
        # sshd run by root requires its folder in /run: create it in a mount namespace, without changing this machine.
        ready = "" if os.geteuid() else "mount -t tmpfs none /run && mkdir -m 755 /run/sshd && "
        command = ["sh", "-c", f"{ready}exec {SSHD} -D -e -f {tmp_path}/sshd.conf"]
        sshd = subprocess.Popen(
            command if os.geteuid() else ["unshare", "--mount", *command], stderr=log
        )
    import fsspec.config

    options = {"username": getpass.getuser(), "key_filename": str(tmp_path / "user"), "port": port}
    monkeypatch.setitem(fsspec.config.conf, "sftp", options)
    until = time.monotonic() + 20
    while "listening" not in (tmp_path / "log").read_text():
        if sshd.poll() is not None:
            pytest.skip(f"sshd does not run here: {(tmp_path / 'log').read_text()[-300:]}")
        assert time.monotonic() < until
        time.sleep(0.05)
    yield "sftp://127.0.0.1"
    sshd.kill()
    sshd.wait()


def test_a_checkpoint_is_copied_to_another_host_and_restored(host, tmp_path, checkpoint):
    backend = open_backend(f"{host}{tmp_path}/far")
    assert backend.steps() == []
    for step in (100, 200):
        folder = checkpoint(step)
        backend.put(folder, checkpoint_manifest.read_manifest(folder))
    assert backend.steps() == [200, 100]

    manifest = backend.manifest(200)
    for entry in manifest.files:
        backend.fetch(manifest, entry, tmp_path / "back")
    assert not any(checkpoint_manifest.find_damage(tmp_path / "back", manifest))
    backend.remove(100)
    backend.quarantine(200)
    with pytest.raises(CheckpointUnreadable):
        backend.manifest(200)
