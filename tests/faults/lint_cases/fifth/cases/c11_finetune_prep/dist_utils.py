import os
import time

import torch
import torch.distributed as dist


def initialize():
    torch.cuda.set_device(get_local_rank())
    dist.init_process_group("cpu:gloo,cuda:nccl")


def get_local_rank():
    return int(os.environ["LOCAL_RANK"])


def get_node_rank():
    return int(os.environ.get("GROUP_RANK", 0))


def wait_for_file(path, poll=0.5):
    while not os.path.exists(path):
        time.sleep(poll)
