"""Before a process group is destroyed, its threads become idle."""

import hashlib
import threading

from holdfast.recorder import group_threads

#: Hashing this much releases the GIL for some milliseconds.
BLOCK = bytes(1 << 22)


def test_waits_for_a_thread_that_computes_without_the_gil(monkeypatch):
    monkeypatch.setattr(group_threads, "IDLE_TIMEOUT_S", 60.0)
    monkeypatch.setattr(group_threads, "GROUP_TIMEOUT_S", 60.0)
    digests = []
    thread = threading.Thread(target=lambda: digests.append(hashlib.sha256(BLOCK).digest()))
    thread.start()
    group_threads.wait_until_idle()
    assert digests
    thread.join()


def test_does_not_wait_for_a_thread_that_always_computes(monkeypatch):
    monkeypatch.setattr(group_threads, "IDLE_TIMEOUT_S", 0.01)
    end = threading.Event()

    def compute():
        while not end.is_set():
            hashlib.sha256(BLOCK)

    thread = threading.Thread(target=compute)
    thread.start()
    group_threads.wait_until_idle()
    assert thread.is_alive()
    end.set()
    thread.join()
