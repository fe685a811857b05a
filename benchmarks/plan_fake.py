"""Simulate steps on fake tensors and compare their peaks with published simulations.

Usage: ``python -m benchmarks.plan_fake TRUTH.json [ID ...]``, for rows of the kind "memory
(simulated)". The module is torchtitan's Llama, with fused or unfused norms and rotary embeddings,
as the row states. Takes minutes on one core.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.plan_rows import Row, medians, table
from holdfast.plan.memory.estimate import estimate_memory
from holdfast.plan.models import Transformer, get_known_model
from holdfast.plan.setup import ActivationCheckpointing, TrainingSetup
from holdfast.plan.torch_tracing import TraceLimits, simulate_step

GIB = 1 << 30
_MODELS = {"8b": "llama3.1-8b", "13b_l2": "llama2-13b", "70b_l2": "llama2-70b"}
_RECOMPUTE = {
    "none": ActivationCheckpointing.NONE,
    "op": ActivationCheckpointing.OPERATIONS,
    "layer2": ActivationCheckpointing.SECOND_LAYER,
    "full": ActivationCheckpointing.FULL,
}


class Layer(nn.Module):
    """A transformer layer of Llama."""

    def __init__(self, model: Transformer, *, rotary: bool) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.rotary = model.heads, model.kv_heads, rotary
        queries, keys = model.heads * model.head_width, model.kv_heads * model.head_width
        self.wq, self.wo = (
            nn.Linear(model.hidden, queries, bias=False),
            nn.Linear(queries, model.hidden, bias=False),
        )
        self.wk, self.wv = (nn.Linear(model.hidden, keys, bias=False) for _ in range(2))
        self.w1, self.w3 = (nn.Linear(model.hidden, model.ffn, bias=False) for _ in range(2))
        self.w2 = nn.Linear(model.ffn, model.hidden, bias=False)
        self.attention_norm, self.ffn_norm = (nn.RMSNorm(model.hidden) for _ in range(2))

    def forward(self, x: Tensor, rotations: Tensor) -> Tensor:
        """Apply attention and the feed-forward network."""
        y = self.attention_norm(x)
        queries, keys, values = (
            each(y).unflatten(-1, (heads, -1))
            for each, heads in (
                (self.wq, self.n_heads),
                (self.wk, self.n_kv_heads),
                (self.wv, self.n_kv_heads),
            )
        )
        if self.rotary:
            queries, keys = apply_rotary(queries, rotations), apply_rotary(keys, rotations)
        repeats = self.n_heads // self.n_kv_heads
        if repeats > 1:
            keys, values = (
                keys.repeat_interleave(repeats, dim=2),
                values.repeat_interleave(repeats, dim=2),
            )
        found = functional.scaled_dot_product_attention(
            queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), is_causal=True
        )
        x = x + self.wo(found.transpose(1, 2).flatten(2))
        y = self.ffn_norm(x)
        return x + self.w2(functional.silu(self.w1(y)) * self.w3(y))


def apply_rotary(x: Tensor, rotations: Tensor) -> Tensor:
    """Apply rotary embeddings as complex numbers in fp32."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotations[: x.shape[1], None]).flatten(3).type_as(x)


class Llama(nn.Module):
    """Embedding, layers, head."""

    def __init__(self, name: str, layers: int | None = None, *, rotary: bool = True) -> None:
        super().__init__()
        model = get_known_model(name)
        self.embedding = nn.Embedding(model.vocab, model.hidden)
        self.layers = nn.ModuleList(
            Layer(model, rotary=rotary) for _ in range(layers or model.layers)
        )
        self.norm, self.head = (
            nn.RMSNorm(model.hidden),
            nn.Linear(model.hidden, model.vocab, bias=False),
        )
        rotations = torch.empty(16384, model.head_width // 2, dtype=torch.complex64)
        self.register_buffer("rotations", rotations, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.rotations)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


_BUILD = """from benchmarks.plan_fake import Llama
def build(layers=None):
    return Llama({name!r}, layers, rotary={rotary})
"""


def simulate_row(row: dict[str, Any], folder: Path) -> tuple[Row, Row]:
    """Return the simulated peak and that of the formulas, in GiB of tensors."""
    run = row["input"]
    fused = bool(run["fused_norm_rope"])
    name = _MODELS[run["model"]]
    setup = TrainingSetup(
        data=run["world"],
        micro_batch=run["bs"],
        sequence=run["seq"],
        recompute=_RECOMPUTE[run["ac"]],
        fused_norms=fused,
    )
    file = folder / f"{row['id']}.py"
    file.write_text(_BUILD.format(name=name, rotary=not fused))
    found = simulate_step(f"{file}:build", setup, limits=TraceLimits(timeout_s=600.0))
    formula = estimate_memory(get_known_model(name), setup).worst.tensors / GIB
    simulated = found.memory.worst.tensors / GIB
    title = f"{run['model']}, {run['ac']}, {run['bs']} x {run['seq']}"
    note = (
        f"{found.duration_s:.0f} s, layers {' and '.join(map(str, found.depths))} of {found.layers}"
    )
    published = row["expected"]["tracker_peak_gib"]
    return (
        Row(row["id"], f"simulated: {title}", published, simulated, "GiB", note, "simulated"),
        Row(row["id"], f"formulas:  {title}", published, formula, "GiB", "", "formulas"),
    )


def main() -> None:
    """Print each row, then the medians."""
    path, *ids = sys.argv[1:]
    rows = [
        row for row in json.loads(Path(path).read_text()) if row["kind"] == "memory (simulated)"
    ]
    found: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            if not ids or row["id"] in ids:
                pair = simulate_row(row, Path(folder))
                found += pair
                print("\n".join(table(pair)), flush=True)
    print("\n".join(medians(found)))


if __name__ == "__main__":
    main()
