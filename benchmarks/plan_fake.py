"""Runs steps on fake tensors again whose peaks were published, and prints ours next to theirs: minutes, one core.

``python -m benchmarks.plan_fake TRUTH.json [ID ...]``: rows of the kind "memory (simulated)". The module is Llama's as
torchtitan writes it, with norms and rotary embeddings op by op or fused, as the row says.
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
from holdfast.plan.memory import footprint
from holdfast.plan.models import Transformer, known
from holdfast.plan.setup import Recompute, Setup
from holdfast.runtime.footprint import Limits, simulate

GIB = 1 << 30
_MODELS = {"8b": "llama3.1-8b", "13b_l2": "llama2-13b", "70b_l2": "llama2-70b"}
_RECOMPUTE = {
    "none": Recompute.NONE, "op": Recompute.OPERATIONS, "layer2": Recompute.SECOND_LAYER, "full": Recompute.FULL,
}  # fmt: skip


class Layer(nn.Module):
    """One of Llama's."""

    def __init__(self, model: Transformer, *, rotary: bool) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.rotary = model.heads, model.kv_heads, rotary
        queries, keys = model.heads * model.head_width, model.kv_heads * model.head_width
        self.wq, self.wo = nn.Linear(model.hidden, queries, bias=False), nn.Linear(queries, model.hidden, bias=False)
        self.wk, self.wv = (nn.Linear(model.hidden, keys, bias=False) for _ in range(2))
        self.w1, self.w3 = (nn.Linear(model.hidden, model.ffn, bias=False) for _ in range(2))
        self.w2 = nn.Linear(model.ffn, model.hidden, bias=False)
        self.attention_norm, self.ffn_norm = (nn.RMSNorm(model.hidden) for _ in range(2))

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        """Attention and the feed-forward part."""
        y = self.attention_norm(x)
        queries, keys, values = (each(y).unflatten(-1, (heads, -1)) for each, heads in (
            (self.wq, self.n_heads), (self.wk, self.n_kv_heads), (self.wv, self.n_kv_heads)))  # fmt: skip
        if self.rotary:
            queries, keys = turned(queries, turns), turned(keys, turns)
        times = self.n_heads // self.n_kv_heads
        if times > 1:
            keys, values = keys.repeat_interleave(times, dim=2), values.repeat_interleave(times, dim=2)
        found = functional.scaled_dot_product_attention(
            queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), is_causal=True
        )
        x = x + self.wo(found.transpose(1, 2).flatten(2))
        y = self.ffn_norm(x)
        return x + self.w2(functional.silu(self.w1(y)) * self.w3(y))


def turned(x: Tensor, turns: Tensor) -> Tensor:
    """Rotary embeddings as complex numbers in fp32."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns[: x.shape[1], None]).flatten(3).type_as(x)


class Llama(nn.Module):
    """Embedding, layers, head."""

    def __init__(self, name: str, layers: int | None = None, *, rotary: bool = True) -> None:
        super().__init__()
        model = known(name)
        self.embedding = nn.Embedding(model.vocab, model.hidden)
        self.layers = nn.ModuleList(Layer(model, rotary=rotary) for _ in range(layers or model.layers))
        self.norm, self.head = nn.RMSNorm(model.hidden), nn.Linear(model.hidden, model.vocab, bias=False)
        turns = torch.empty(16384, model.head_width // 2, dtype=torch.complex64)
        self.register_buffer("turns", turns, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.turns)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


_BUILD = """from benchmarks.plan_fake import Llama
def build(layers=None):
    return Llama({name!r}, layers, rotary={rotary})
"""


def again(row: dict[str, Any], folder: Path) -> tuple[Row, Row]:
    """Simulated and by the formulas, in GiB of tensors."""
    given = row["input"]
    fused = bool(given["fused_norm_rope"])
    name = _MODELS[given["model"]]
    setup = Setup(
        data=given["world"],
        micro_batch=given["bs"],
        sequence=given["seq"],
        recompute=_RECOMPUTE[given["ac"]],
        fused_norms=fused,
    )
    file = folder / f"{row['id']}.py"
    file.write_text(_BUILD.format(name=name, rotary=not fused))
    found = simulate(f"{file}:build", setup, limits=Limits(time_s=600.0))
    formula = footprint(known(name), setup).worst.tensors / GIB
    got = found.footprint.worst.tensors / GIB
    what = f"{given['model']}, {given['ac']}, {given['bs']} x {given['seq']}"
    note = f"{found.took_s:.0f} s, layers {' and '.join(map(str, found.depths))} of {found.layers}"
    theirs = row["expected"]["tracker_peak_gib"]
    return (
        Row(row["id"], f"simulated: {what}", theirs, got, "GiB", note, "simulated"),
        Row(row["id"], f"formulas:  {what}", theirs, formula, "GiB", "", "formulas"),
    )


def main() -> None:
    """Each row as it is done."""
    path, *ids = sys.argv[1:]
    rows = [row for row in json.loads(Path(path).read_text()) if row["kind"] == "memory (simulated)"]
    found: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            if not ids or row["id"] in ids:
                pair = again(row, Path(folder))
                found += pair
                print("\n".join(table(pair)), flush=True)
    print("\n".join(medians(found)))


if __name__ == "__main__":
    main()
