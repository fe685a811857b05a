"""A native library of rank 2 finds its heap corrupted and aborts."""

import ctypes

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
libc = ctypes.CDLL("libc.so.6")
libc.malloc.restype = ctypes.c_void_p
for step in range(20):
    if (rank, step) == (2, 9):
        block = libc.malloc(64)
        libc.free(ctypes.c_void_p(block))
        libc.free(ctypes.c_void_p(block))
        libc.free(ctypes.c_void_p(block + 8))
    dist.all_reduce(torch.ones(4))
    if rank == 0 and step % 5 == 0:
        print(f"step {step} / 20 loss {3 / (step + 1):.4f}", flush=True)
