"""Start-up and shut-down of one worker of the tensor-parallel decoder."""
import abc
import datetime
import enum
import logging
import os
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist

log = logging.getLogger("decoder.runtime")


class Phase(enum.IntEnum):
    NEW = 0
    CONNECTED = 1
    READY = 2
    CLOSED = 3


@dataclass
class LaunchEnv:
    rank: int
    local_rank: int
    world_size: int

    @classmethod
    def from_environ(cls):
        env = os.environ
        return cls(
            rank=int(env.get("RANK", 0)),
            local_rank=int(env.get("LOCAL_RANK", 0)),
            world_size=int(env.get("WORLD_SIZE", 1)),
        )


class Runtime(abc.ABC):
    backend: str

    def __init__(self, env: LaunchEnv, settings):
        self.env = env
        self.settings = settings
        self.phase = Phase.NEW
        self.device = torch.device("cpu")

    def __enter__(self):
        self.connect()
        self.agree_on_settings()
        self.acquire_device()
        self.phase = Phase.READY
        return self

    def __exit__(self, *exc):
        if dist.is_initialized():
            dist.destroy_process_group()
        self.phase = Phase.CLOSED
        return False

    def connect(self):
        dist.init_process_group(
            self.backend,
            rank=self.env.rank,
            world_size=self.env.world_size,
            timeout=datetime.timedelta(minutes=5),
        )
        self.phase = Phase.CONNECTED

    def agree_on_settings(self):
        """The command line of rank 0 wins."""
        box = [asdict(self.settings)]
        dist.broadcast_object_list(box, src=0)  # RELATED: hidden-collective
        self.settings = type(self.settings)(**box[0])
        if self.env.rank == 0:
            log.info("settings: %s", self.settings)

    @abc.abstractmethod
    def acquire_device(self):
        ...


class CpuRuntime(Runtime):
    backend = "gloo"

    def acquire_device(self):
        torch.set_num_threads(1)


class CudaRuntime(Runtime):
    backend = "nccl"

    def acquire_device(self):
        torch.cuda.set_device(self.env.local_rank)  # EXPECT: init-order
        self.device = torch.device("cuda", self.env.local_rank)
        torch.backends.cuda.matmul.allow_tf32 = True


def make_runtime(settings):
    kind = CudaRuntime if torch.cuda.is_available() else CpuRuntime
    return kind(LaunchEnv.from_environ(), settings)
