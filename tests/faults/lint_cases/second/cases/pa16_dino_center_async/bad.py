"""DINO self-distillation with an asynchronously reduced teacher centre."""
import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class DINOLoss(nn.Module):
    def __init__(self, out_dim, student_temp=0.1, teacher_temp=0.04, center_momentum=0.9):
        super().__init__()
        self.student_temp, self.teacher_temp = student_temp, teacher_temp
        self.center_momentum = center_momentum
        self.register_buffer("center", torch.zeros(1, out_dim))
        self.updated = True
        self.reduce_handle = None
        self.batch_center = None
        self.len_teacher_output = None

    @torch.no_grad()
    def softmax_center_teacher(self, teacher_output):
        self.apply_center_update()
        return F.softmax((teacher_output - self.center) / self.teacher_temp, dim=-1)

    def forward(self, student_out, teacher_probs):
        total = 0.0
        for i, s in enumerate(student_out):
            logp = F.log_softmax(s / self.student_temp, dim=-1)
            for j, t in enumerate(teacher_probs):
                if i != j:
                    total = total - (t * logp).sum(-1).mean()
        return total

    @torch.no_grad()
    def update_center(self, teacher_output):
        self.reduce_center_update(teacher_output)

    @torch.no_grad()
    def reduce_center_update(self, teacher_output):
        self.updated = False
        self.len_teacher_output = len(teacher_output)
        self.batch_center = teacher_output.sum(0, keepdim=True)
        self.reduce_handle = dist.all_reduce(self.batch_center, async_op=True)  # EXPECT: missing-wait

    @torch.no_grad()
    def apply_center_update(self):
        if self.updated:
            return
        world = dist.get_world_size()
        mean = self.batch_center / (self.len_teacher_output * world)
        self.center = self.center * self.center_momentum + mean * (1 - self.center_momentum)
        self.updated = True


class Backbone(nn.Module):
    def __init__(self, dim=48, out_dim=256):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 4, 4)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.head = nn.Linear(dim, out_dim, bias=False)

    def forward(self, x):
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = (h + self.mlp(h)).mean(1)
        return self.head(F.normalize(h, dim=-1))


class MultiCrop:
    def __init__(self, seed, n_local=2):
        self.gen = torch.Generator().manual_seed(seed)
        self.n_local = n_local

    def __call__(self, batch):
        base = torch.randn(batch, 3, 16, 16, generator=self.gen)
        jitter = lambda: base + 0.1 * torch.randn(base.shape, generator=self.gen)
        return [jitter() for _ in range(2)], [jitter()[..., 4:12, 4:12] for _ in range(self.n_local)]


class SSLMetaArch:
    def __init__(self, momentum=0.99):
        net = Backbone()
        self.teacher = copy.deepcopy(net).requires_grad_(False)
        self.student = DDP(net)
        self.loss_fn = DINOLoss(256)
        self.momentum = momentum
        self.optim = torch.optim.AdamW(self.student.parameters(), lr=1e-3)

    def teacher_targets(self, global_crops):
        out = self.teacher(torch.cat(global_crops))
        self.loss_fn.update_center(out)
        probs = self.loss_fn.softmax_center_teacher(out)
        return probs.chunk(len(global_crops))

    def train_step(self, global_crops, local_crops):
        targets = self.teacher_targets(global_crops)
        g = self.student(torch.cat(global_crops)).chunk(2)
        l = [self.student.module(c) for c in local_crops]
        loss = self.loss_fn([*g, *l], targets)
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        with torch.no_grad():
            for t, s in zip(self.teacher.parameters(), self.student.module.parameters()):
                t.lerp_(s, 1 - self.momentum)
        return loss.item()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    arch, crops = SSLMetaArch(), MultiCrop(seed=dist.get_rank())
    for step in range(20):
        loss = arch.train_step(*crops(16))
        if step % 5 == 0:
            print(f"rank {dist.get_rank()} step {step} loss {loss:.4f} center {arch.loss_fn.center.norm():.5f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
