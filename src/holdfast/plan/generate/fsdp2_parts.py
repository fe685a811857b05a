"""The parts of FSDP2's script that are the same for all settings, or have one place where they differ."""

HEAD = '''"""Trains with FSDP2 (torch 2.6 or later): torchrun --nproc-per-node N train_fsdp2.py --steps 10

Written by holdfast from a plan or a configuration. The part between the two lines of dashes is yours.
"""

from __future__ import annotations

import argparse
${math}import os

import torch
import torch.distributed as dist
${imports}from torch import nn
from torch.distributed.checkpoint.state_dict import ${options}get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import ${policies}MixedPrecisionPolicy, OffloadPolicy, fully_shard

$constants
'''

STAND_IN = '''
# ---- yours: the model, which parts of it are gathered one after the other, its data and its loss


VOCABULARY, WIDTH, LAYERS = 256, 64, 2


class Model(nn.Module):
    """A stand-in: replace it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True) for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        """Scores of the next token, for all tokens of all sequences in a row."""
        seen = self.embedding(tokens)
        for layer in self.layers:
            seen = layer(seen)
        return self.head(seen.flatten(0, 1))


def build_model() -> nn.Module:
    """In fp32, with the same weights on each rank. A large one: under torch.device("meta"), and loaded afterwards."""
    torch.manual_seed(0)
    return Model()


def layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Name and module of each part that is gathered by itself: the blocks of a transformer."""
    return [(f"layers.{number}", layer) for number, layer in enumerate(model.layers)]


def batches(rank: int):
    """Micro-batches of this data-parallel rank, without an end; of few tokens, so that there is something to learn."""
    source = torch.Generator().manual_seed(1 + rank)
    while True:
        yield torch.randint(16, (MICRO_BATCH, SEQUENCE + 1), generator=source)


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """The mean over a micro-batch."""
    scores = model(tokens[:, :-1])
    return nn.functional.cross_entropy(scores.float(), tokens[:, 1:].flatten())


# ---- what the settings ask for


'''

BODY = '''def sharded(model: nn.Module, mesh: DeviceMesh, device: str) -> nn.Module:
    """Layer by layer, then the rest. The optimizer is made afterwards: it takes the shares."""
    $shard


${replace}def factor(step: int) -> float:
    """The learning rate at this step (the first is 0), as a share of LR."""
    $schedule


def main() -> None:
    """The whole job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--save", help="folder for the weights at the end")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group($backend)
    if dist.get_world_size() != REPLICATE * SHARD:
        raise SystemExit(f"{dist.get_world_size()} ranks were started, and the settings are for {REPLICATE * SHARD}")
    mesh = init_device_mesh(device, (REPLICATE, SHARD), mesh_dim_names=("replicate", "shard"))
    model = sharded(build_model(), mesh if REPLICATE > 1 else mesh["shard"], device)
    optimizer = $optimizer
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

${scaler}    data = batches(dist.get_rank())
    for step in range(1, options.steps + 1):
        total = torch.zeros((), device=device)
        $step
        optimizer.zero_grad()
        schedule.step()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"step {step} loss {total.item() / dist.get_world_size():.7f}", flush=True)

    if options.save:
        save(model, options.save)
    dist.barrier()  # nobody leaves while another still saves
    dist.destroy_process_group()


$save

if __name__ == "__main__":
    main()
'''

SAVE_WHOLE = '''def save(model: nn.Module, folder: str) -> None:
    """All weights in one file, gathered on rank 0; all ranks take part."""
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        os.makedirs(folder, exist_ok=True)
        torch.save(weights, os.path.join(folder, "weights.pt"))
'''

SAVE_SHARDS = '''def save(model: nn.Module, folder: str) -> None:
    """Each rank its share; torch.distributed.checkpoint loads them on any number of ranks."""
    dcp.save(get_model_state_dict(model), checkpoint_id=folder)
'''

REPLACE = '''def replace(model: nn.Module, name: str, layer: nn.Module) -> None:
    """Puts a wrapped layer in the place of the bare one."""
    above, _, last = name.rpartition(".")
    setattr(model.get_submodule(above), last, layer)


'''
