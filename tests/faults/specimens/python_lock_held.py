"""Rank 1 waits for a lock in native code with the GIL held, which the lock's owner needs."""

import ctypes
import sys
import threading
import time

import torch
import torch.distributed as dist

HEALTHY = "--healthy" in sys.argv  # disables the fault: the call releases the GIL
native = ctypes.CDLL(None) if HEALTHY else ctypes.PyDLL(None)
lock = ctypes.create_string_buffer(64)  # a pthread_mutex_t


def write_cache(locked: threading.Event) -> None:
    native.pthread_mutex_lock(lock)
    locked.set()
    time.sleep(0.1)
    native.pthread_mutex_unlock(lock)


def read_cache() -> None:
    locked = threading.Event()
    threading.Thread(target=write_cache, args=(locked,)).start()
    locked.wait()
    native.pthread_mutex_lock(lock)  # GUILTY
    native.pthread_mutex_unlock(lock)


def main(rank: int) -> None:
    for step in range(40):
        dist.all_reduce(torch.ones(64))
        if rank == 1 and step == 20:
            read_cache()
    if rank == 0:
        print("done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(dist.get_rank())
