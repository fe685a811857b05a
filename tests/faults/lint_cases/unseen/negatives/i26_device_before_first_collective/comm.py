"""Who and where this process is, and the few transfers that the project needs."""
import torch.distributed as dist

_LOCAL_PROCESS_GROUP = None


def is_dist():
    return dist.is_available() and dist.is_initialized()


def get_rank():
    return dist.get_rank() if is_dist() else 0


def get_world_size():
    return dist.get_world_size() if is_dist() else 1


def get_local_rank():
    if not is_dist():
        return 0
    assert _LOCAL_PROCESS_GROUP is not None, "launch() sets the local group"
    return dist.get_rank(group=_LOCAL_PROCESS_GROUP)


def get_machine_rank():
    if not is_dist():
        return 0
    return get_rank() // dist.get_world_size(group=_LOCAL_PROCESS_GROUP)


def create_local_process_group(per_machine):
    global _LOCAL_PROCESS_GROUP
    mine = get_rank() // per_machine
    for i in range(get_world_size() // per_machine):
        group = dist.new_group(list(range(i * per_machine, (i + 1) * per_machine)))
        if i == mine:
            _LOCAL_PROCESS_GROUP = group


def synchronize():
    if get_world_size() > 1:
        dist.barrier()


def synchronize_machine():
    if is_dist() and dist.get_world_size(group=_LOCAL_PROCESS_GROUP) > 1:
        dist.barrier(group=_LOCAL_PROCESS_GROUP)


def mean(tensor):
    out = tensor.detach().clone()
    if get_world_size() > 1:
        dist.all_reduce(out)
        out /= get_world_size()
    return out
