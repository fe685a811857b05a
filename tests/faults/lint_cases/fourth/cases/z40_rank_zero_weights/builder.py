import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class ViTBlock(nn.TransformerEncoderLayer):
    def __init__(self, dim, heads):
        super().__init__(dim, heads, 4 * dim, dropout=0.0, batch_first=True, norm_first=True)


class ViT(nn.Module):
    def __init__(self, dim=1280, heads=16, layers=32, patch=14, classes=1000):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, patch, stride=patch)
        self.positions = nn.Parameter(torch.randn(1, 256, dim) * 0.02)
        self.blocks = nn.Sequential(*[ViTBlock(dim, heads) for _ in range(layers)])
        self.head = nn.Linear(dim, classes)

    def forward(self, images):
        x = self.patch(images).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.blocks(x).mean(1))


class ModelBuilder:
    """Builds the model; host memory only allows one copy of the checkpoint per job."""

    def __init__(self, checkpoint):
        self.checkpoint = checkpoint

    def build(self):
        model = ViT()
        if dist.get_rank() == 0:
            state = torch.load(self.checkpoint, map_location="cpu", mmap=True)
            missing, unexpected = model.load_state_dict(state, strict=False)
            print(f"loaded {self.checkpoint}: missing {missing}, unexpected {unexpected}")
        return model

    def shard(self, model):
        return FSDP(
            model,
            auto_wrap_policy=ModuleWrapPolicy({ViTBlock}),
            device_id=torch.cuda.current_device(),
            use_orig_params=True,
        )
