import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy


class ShardingMixin:
    """Wraps the module of a trainer."""

    def shard(self, module):
        precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        return FSDP(
            module,
            sharding_strategy=ShardingStrategy.FULL_SHARD,
            mixed_precision=precision,
            device_id=torch.cuda.current_device(),
            sync_module_states=True,
        )


class ClippingMixin:
    max_grad_norm = 1.0

    def clip_gradients(self):
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)


class LoggingMixin:
    def log(self, step, **values):
        if dist.get_rank() == 0:
            print(f"{step:6d} " + " ".join(f"{k} {float(v):.4f}" for k, v in values.items()))
