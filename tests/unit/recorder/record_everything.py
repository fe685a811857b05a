"""Run every kind of collective once, on two gloo ranks; used by test_recorder.py."""

import sys

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
one = torch.ones(4)


def reduce_from_a_function() -> None:
    """Make a call with a caller and with a unique shape."""
    dist.all_reduce(torch.ones(2, 5), dist.ReduceOp.MAX)  # LINE all_reduce


reduce_from_a_function()  # LINE caller
dist.broadcast(one, 0)
dist.all_gather([torch.empty(4), torch.empty(4)], one)
dist.all_gather_into_tensor(torch.empty(8), one)
dist.reduce_scatter_tensor(torch.empty(2), one)
dist.reduce(one, 0)
dist.gather(one, [torch.empty(4), torch.empty(4)] if rank == 0 else None)
dist.scatter(torch.empty(4), [one, one] if rank == 0 else None)
dist.all_to_all_single(torch.empty(4), one)
dist.barrier()
dist.monitored_barrier()
if rank == 0:
    dist.send(one, 1, tag=5)
else:
    dist.recv(one, 0, tag=5)
if rank == 0:
    dist.isend(one, 1, tag=6).wait()
else:
    dist.irecv(one, 0, tag=6).wait()
with dist._coalescing_manager():
    dist.all_reduce(torch.ones(2))
    dist.all_reduce(torch.ones(3))
if "below-autograd" in sys.argv:
    float(functional.all_reduce(torch.ones(6), "sum", dist.group.WORLD).sum())
    with torch.inference_mode():
        dist.all_reduce(torch.ones(7))

layer = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(3):
    layer(torch.ones(2, 8)).sum().backward()  # LINE backward
    optimizer.step()

if "fsdp" in sys.argv:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Linear(8, 8)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    model(torch.ones(2, 8)).sum().backward()  # LINE fsdp

pair = dist.new_group([0, 1])
dist.all_reduce(one, group=pair)
work = dist.all_reduce(one, async_op=True)
work.wait()
del layer  # before its group (PROC013)
dist.destroy_process_group()
