"""The guide to migration, written from the same table by which ``migrate`` goes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby

from holdfast.plan.generate.carrying import SIDES, pairs
from holdfast.plan.generate.choice import choose
from holdfast.plan.generate.mapping import ROWS, Row
from holdfast.plan.generate.migration import Format, migrate
from holdfast.plan.hardware import Cluster
from holdfast.plan.models import known
from holdfast.plan.setup import Offload, Setup, Strategy

_INTRODUCTION = """\
FSDP2 and ZeRO do the same: ranks share what training keeps of a model. Their settings have other names, other
defaults, and in some places other meanings that no error tells of. `holdfast plan --migrate FILE --to FORMAT`
carries a configuration over, in both directions, and says of each setting what it became, what differs silently,
and why it was left out, if it was. It works on the table below, from which this page is written; DeepSpeed is that
of 0.19.8, torch 2.13, Accelerate 1.15.

| form | read from | written as |
| --- | --- | --- |
| `deepspeed` | DeepSpeed's JSON | `deepspeed.json` |
| `fsdp2` | `fsdp2.json`, with the places named below | `fsdp2.json`, and `train_fsdp2.py`, which does it |
| `accelerate-fsdp2` | Accelerate's YAML with `fsdp_config`, of FSDP1 too | `accelerate_fsdp2.yaml` |
| `accelerate-deepspeed` | the same with `deepspeed_config` | `accelerate_deepspeed.yaml` (of a JSON: points to it) |
| `torchtitan` | (is not read) | `torchtitan.toml` up to 0.2.2, `torchtitan.sh` with flags since 2026-02-23 |

`train_fsdp2.py` runs as it stands, with a small model in the place of yours. A test trains that model with
DeepSpeed's ZeRO-2 from its JSON and with the script that was migrated from it (two ranks, fp32, clipping,
accumulation, a schedule): the losses are equal within 1e-5. So they were when it was tried by hand for ZeRO-0, 1 and
3, for a cosine after a logarithmic warm-up, and for the way back from `fsdp2.json`; in bf16 they were within 1e-3.
Other tests let DeepSpeed's and Accelerate's own parsers read what is written for them.
"""
_SILENT = """\
These change the result, and neither framework says a word.

1. **The fp32 copy of the weights.** DeepSpeed makes one of a model in 16 bits. FSDP2 steps on what it was given: of
   weights loaded in bf16, 2.8 % changed in one Adam step at a learning rate of 1e-5, of fp32 ones with
   `param_dtype=bfloat16` 96 % (ZeRO-1: 92 %, ZeRO-3: 96 %; measured on CPU). Load the model in fp32.
2. **Clipping.** DeepSpeed clips at 1.0 where nothing is said, FSDP2 not at all.
3. **"Adam"** is AdamW in DeepSpeed, and its decay is 0 unless given; torch's AdamW has 0.01.
4. **The warm-up** is logarithmic in DeepSpeed unless it says linear, `WarmupDecayLR` goes to 0.001 whatever the
   optimizer's rate is, and the first two steps are at the start. The script has the same formulas.
5. **Where gradients are added up:** in 16 bits in DeepSpeed unless `data_types.grad_accum_dtype` says otherwise, in
   fp32 in FSDP2 over fp32 weights.
6. **In what they are reduced:** in the 16 bits that are computed in, on both sides, unless told otherwise.
7. **Accumulation:** DeepSpeed's `backward` divides the loss, a loop of one's own has to. ZeRO-1 communicates once a
   step, ZeRO-2, 3 and FSDP2 after each micro-batch.
8. **The batch:** ranks x micro-batch x accumulation has to stay the same. Then the learning rate may stay, too.
9. **The loss scale** (fp16): DeepSpeed halves the scale at the second overflow, GradScaler at the first.
"""
_BACK = """\
- **Copies of shards (HSDP)**: DeepSpeed 0.19 removed MiCS, so ZeRO shards over all ranks; `zero_hpz_partition_size`
  keeps the gathering of weights in a group, but gradients cross all links.
- **`reshard_after_forward=<number>`** is `zero_hpz_partition_size`; HYBRID_SHARD is not.
- **Recomputation and compilation** are calls in the script with DeepSpeed: no key turns them on.
- **Tensor, pipeline, context and expert parallelism** are in scripts on both sides, and are not carried over.

Of Accelerate's FSDP1 files, `accelerate to-fsdp2` (1.15) drops the copies of HYBRID_SHARD, takes NO_SHARD for
`reshard_after_forward: false`, which shards, and lets the numbers of older files through, which its plugin refuses.
Here, copies become a mesh (one copy on each of `num_machines`), NO_SHARD becomes DDP, and numbers are read.
"""
_EXAMPLE = {
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 200000000, "offload_optimiser": {"device": "cpu"}},
    "optimizer": {"type": "Adam", "params": {"lr": 1e-5}},
}
_CHOICE = """\
Neither is better in general. `holdfast plan` says which one more speaks for, and what speaks for each; a reason weighs
3 where the other framework cannot do it, and 1 where it is a matter of taste.
"""
_CASES = (
    ("llama3.1-8b", "8 x 8 H100-80G", Setup(data=64, compiled=True)),
    ("llama2-13b", "8 V100-32G", Setup(data=8, strategy=Strategy.ZERO2, offload=Offload.OPTIMIZER)),
)
_CHECKPOINTS = """\
A configuration without its checkpoint starts from the beginning. `holdfast ckpt convert` carries weights, Adam's
moments, steps and parameter groups over, between any two of the forms below, for another number of ranks if need be,
and reads back every tensor of what it wrote ([ckpt.md](ckpt.md)). Neither framework has to be installed for it.

1. Save with the old framework, once more, after its last step.
2. Convert: the line of the pair in the table.
3. Make the optimizer with the parameter groups of the old one, in their order: ZeRO's flat buffers and torch's numbers
   follow from them.
4. Load with the new framework, before its first step, and compare the first loss with the one that the old framework
   would have had: it is the same within 1e-5 in fp32. If not, the configuration differs: see above.

What does not come along from one framework to another: the position in the data (it follows from the step, which does),
the state of random number generators, and the loss scale of fp16, which is found anew. A schedule's state comes along
where both sides have one; behind `not in it`, `ckpt convert` says what it left out of yours.
"""
_TRIED = """\
`examples/frameworks` saves, loads and goes on under DDP, FSDP2 and DeepSpeed (`strategies.py`). A test trains its model
for four steps under one, runs the line of the table, loads the result in the other, and compares the next losses with
those of a job that was never interrupted: FSDP2 to ZeRO-3, ZeRO-2 to FSDP2, DDP to ZeRO-1, ZeRO-3 to DDP. From FSDP2
to Accelerate with DeepSpeed it was tried by hand, with the same losses. torchtitan's own checkpoints were not tried.
"""
_LIMITS = """\
It reads configurations, not scripts: what a script passes to `deepspeed.initialize`, to the Trainer or to
`fully_shard` is not seen, and `"auto"` is named as unknown. The generated script is data-parallel only, offloads
all or nothing (FSDP2 cannot do otherwise), and knows AdamW, Adam and SGD; of other optimizers it says so. It was
tried on CPUs with gloo in fp32, bf16 and fp16; not on GPUs. LRRangeTest and OneCycle are left out. What DeepSpeed's
JSON can tune and FSDP2 cannot is in the last table: buckets, prefetching, persistence, NVMe, quantized
communication. That is what DeepSpeed does better, and a reason to stay with it where it is needed; what FSDP2 does
better is to be an ordinary part of torch: compiled, composed with other axes of a mesh, and saved so that any
number of ranks can load it.
"""


def page(note: str) -> str:
    """The guide, as Markdown; ``note`` says from what it is written."""
    taken = [entry for entry in ROWS.values() if entry.mapped]
    parts = [
        "# From DeepSpeed to FSDP2 and back\n",
        note,
        _INTRODUCTION,
        "## What differs silently\n",
        _SILENT,
        "## An example\n",
        _example(),
        "## Which of the two\n",
        _CHOICE,
        "\n".join(_choice(*case) for case in _CASES),
        "## Settings with a counterpart\n",
        "| DeepSpeed | fsdp2.json | in torch | Accelerate's FSDP2 | what differs |\n| --- | --- | --- | --- | --- |\n"
        + "".join(_line(entry) for entry in taken),
        "## From FSDP2 to DeepSpeed\n",
        "The same table, read from the second column to the first. Besides:\n",
        _BACK,
        "## The checkpoint\n",
        _CHECKPOINTS,
        "| from | to | command | then |\n| --- | --- | --- | --- |\n" + "".join(_carried()),
        "| form | saves | to be seen to |\n| --- | --- | --- |\n" + "".join(_sides()),
        _TRIED,
        "## Settings without one\n",
        "| DeepSpeed | why FSDP2 has none |\n| --- | --- |\n" + "".join(_reasons()),
        "## Limits\n",
        _LIMITS,
    ]
    return "\n".join(parts).rstrip() + "\n"


def _choice(model: str, cluster: str, setup: Setup) -> str:
    found = choose(known(model), setup, Cluster.parse(cluster))
    close = ", closely" if found.close else ""
    lines = [f"{model} on {cluster}, {setup.strategy}: {found.recommended}{close}"]
    lines += [f"  {reason.for_:9} {reason.weight}  {reason.sentence} [{reason.source}]" for reason in found.reasons]
    return "```text\n" + "\n".join(lines) + "\n```\n"


def _line(entry: Row) -> str:
    cells = (f"`{entry.key}`", f"`{entry.fsdp2}`", entry.torch, entry.accelerate, entry.differs)
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n"


def _reasons() -> Iterator[str]:
    rows = sorted((entry for entry in ROWS.values() if not entry.mapped), key=lambda entry: (entry.none, entry.key))
    for why, entries in groupby(rows, key=lambda entry: entry.none):
        keys = ", ".join(f"`{entry.key}`" for entry in entries)
        yield f"| {keys} | {why} |\n"


def _carried() -> Iterator[str]:
    for pair in pairs():
        yield f"| {pair.origin.title} | {pair.to.title} | `{pair.command}` | `{pair.to.loaded}` |\n"


def _sides() -> Iterator[str]:
    for side in SIDES.values():
        yield f"| {side.title} | `{side.saved}` | {side.mind} |\n"


def _example() -> str:
    found = migrate(_EXAMPLE, Format.FSDP2)
    lines = [f"{entry.key} = {entry.value}  ->  {entry.becomes}" for entry in found.mapped]
    lines += [f"left out: {loss.what}: {loss.why}" for loss in found.lost]
    lines += [f"look at: {warning}" for warning in found.warnings]
    text = "\n".join(lines)
    return f"```json\n{json.dumps(_EXAMPLE, indent=2)}\n```\n\nWhat becomes of it with FSDP2:\n\n```text\n{text}\n```\n"
