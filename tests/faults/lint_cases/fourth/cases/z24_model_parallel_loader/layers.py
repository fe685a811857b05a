import torch
import torch.distributed as dist
from torch import nn

import mpu


class _ReduceFromGroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x, group=mpu.get_tensor_model_parallel_group())
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class _CopyToGroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=mpu.get_tensor_model_parallel_group())
        return grad


class ParallelMLP(nn.Module):
    def __init__(self, dim, hidden, shards):
        super().__init__()
        self.up = nn.Linear(dim, hidden // shards)
        self.down = nn.Linear(hidden // shards, dim, bias=False)

    def forward(self, x):
        return _ReduceFromGroup.apply(self.down(torch.relu(self.up(_CopyToGroup.apply(x)))))
