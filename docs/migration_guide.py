"""The migration guide, generated from the mapping behind ``--migrate``.

Its commands for checkpoints have one row per form; those of all pairs are derived from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import groupby

import msgspec

from holdfast.plan.generate.framework_choice import choose_framework
from holdfast.plan.generate.mapping import SETTING_MAPPINGS, SettingMapping
from holdfast.plan.generate.migration import ConfigFormat, migrate_settings
from holdfast.plan.hardware import Cluster
from holdfast.plan.models import get_known_model
from holdfast.plan.setup import OffloadTarget, ShardingStrategy, TrainingSetup

_INTRODUCTION = """\
FSDP2 and ZeRO shard the same model states. Their settings differ in names, in defaults, and
sometimes silently in meaning. `holdfast plan --migrate FILE --to FORMAT` converts a configuration
in both directions and reports for each setting its target, silent differences, and the reason if
it is not converted. It uses the table below, from which this page is generated, for DeepSpeed
0.19.8, torch 2.13 and Accelerate 1.15.

| format | read from | written as |
| --- | --- | --- |
| `deepspeed` | DeepSpeed's JSON | `deepspeed.json` |
| `fsdp2` | `fsdp2.json`; a script with FSDP1 or 2 | `fsdp2.json`, `train_fsdp2.py` |
| `accelerate-fsdp2` | Accelerate's YAML with `fsdp_config`, also FSDP1 | `accelerate_fsdp2.yaml` |
| `accelerate-deepspeed` | the same with `deepspeed_config` | `accelerate_deepspeed.yaml` |
| `torchtitan` | not supported | `torchtitan.toml` (to 0.2.2), `torchtitan.sh` (since 2026-02-23) |

`fsdp2.json` has the keys below. Of a script, policies, precision, activation checkpointing and
optimizer are read. `train_fsdp2.py` runs as generated, with a small model as a placeholder. A test
trains that model with DeepSpeed's ZeRO-2 from its JSON and with the script migrated from it (two
ranks, fp32, clipping, accumulation, a schedule): the losses are equal within 1e-5. Manual tests
gave the same for ZeRO-0, 1 and 3, for a cosine after a logarithmic warm-up, and for the way back
from `fsdp2.json`; in bf16 the losses were within 1e-3. Other tests check the output with
DeepSpeed's and Accelerate's parsers.
"""
_SILENT_DIFFERENCES = """\
These change the result without any message of either framework.

1. **The fp32 copy of the weights.** DeepSpeed creates one for a 16-bit model. FSDP2 updates the
   weights as loaded: of weights loaded in bf16, 2.8 % changed in one Adam step at a learning rate
   of 1e-5, of fp32 weights with `param_dtype=bfloat16` 96 % (ZeRO-1: 92 %, ZeRO-3: 96 %; measured
   on CPU). Load the model in fp32.
2. **Clipping.** DeepSpeed clips at 1.0 by default, FSDP2 not at all.
3. **"Adam"** is AdamW in DeepSpeed, with a default decay of 0; torch's AdamW has 0.01.
4. **The warm-up** is logarithmic in DeepSpeed by default, `WarmupDecayLR` rises to 0.001
   regardless of the optimizer's rate, and the first two steps use the initial rate. The script
   has the same formulas.
5. **Gradient accumulation dtype:** 16 bits in DeepSpeed unless `data_types.grad_accum_dtype` is
   set, fp32 in FSDP2 with fp32 weights.
6. **Gradient reduction dtype:** the 16-bit compute dtype on both sides by default.
7. **Accumulation:** DeepSpeed's `backward` divides the loss, a custom loop must do so. ZeRO-1
   communicates once per step, ZeRO-2, 3 and FSDP2 after each micro-batch.
8. **The batch:** keep ranks x micro-batch x accumulation constant. Then keep the learning rate,
   too.
9. **The loss scale** (fp16): DeepSpeed halves the scale at the second overflow, GradScaler at the
   first.
"""
_TO_DEEPSPEED = """\
- **Replicas of shards (HSDP)**: DeepSpeed 0.19 removed MiCS, so ZeRO shards over all ranks;
  `zero_hpz_partition_size` keeps weight all-gathers within a group, but gradients cross all
  links.
- **`reshard_after_forward=<number>`** is `zero_hpz_partition_size`; HYBRID_SHARD is not.
- **Activation checkpointing and compilation** are calls in the script with DeepSpeed; it has no
  keys for them.
- **Tensor, pipeline, context and expert parallelism** are in scripts on both sides, and are not
  converted.

For Accelerate's FSDP1 files, `accelerate to-fsdp2` (1.15) drops the replicas of HYBRID_SHARD,
converts NO_SHARD to `reshard_after_forward: false`, which shards, and keeps the numbers of older
files, which its plugin rejects. holdfast converts replicas to a mesh (one replica on each of
`num_machines`), NO_SHARD to DDP, and reads numbers.
"""
_EXAMPLE = {
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "bf16": {"enabled": True},
    "zero_optimization": {
        "stage": 2,
        "reduce_bucket_size": 200000000,
        "offload_optimiser": {"device": "cpu"},
    },
    "optimizer": {"type": "Adam", "params": {"lr": 1e-5}},
}
_CHOICE = """\
Neither is better in general. `holdfast plan` recommends one and lists the reasons for each; a
reason weighs 3 if the other framework lacks the feature, and 1 if it is a matter of taste.
"""
_CASES = (
    ("llama3.1-8b", "8 x 8 H100-80G", TrainingSetup(data=64, compiled=True)),
    (
        "llama2-13b",
        "8 V100-32G",
        TrainingSetup(data=8, strategy=ShardingStrategy.ZERO2, offload=OffloadTarget.OPTIMIZER),
    ),
)
_CHECKPOINTS = """\
A configuration without its checkpoint starts from scratch. `holdfast ckpt convert` converts
weights, Adam's moments, steps and parameter groups between any two of the forms below, also for
another number of ranks, and verifies every tensor it wrote ([ckpt.md](ckpt.md)). Neither
framework has to be installed.

1. Save with the old framework, once more, after its last step.
2. Convert: the line of the pair in the table.
3. Create the optimizer with the parameter groups of the old one, in the same order: ZeRO's flat
   buffers and torch's parameter indices depend on it.
4. Load with the new framework, before its first step, and compare the first loss with that of the
   old framework: it is equal within 1e-5 in fp32. If not, the configuration differs: see above.

Not converted: the position in the data (it follows from the step, which is converted), the states
of random number generators, and the loss scale of fp16, which adapts again. A schedule's state is
converted if both sides have one; `ckpt convert` lists what it omitted after `not in it`.
"""
_TESTED = """\
`examples/frameworks` saves, loads and resumes under DDP, FSDP2 and DeepSpeed (`strategies.py`). A
test trains its model for four steps under one, runs the command of the table, loads the result in
the other, and compares the next losses with those of an uninterrupted job: FSDP2 to ZeRO-3,
ZeRO-2 to FSDP2, DDP to ZeRO-1, ZeRO-3 to DDP. FSDP2 to Accelerate with DeepSpeed was tested
manually, with equal losses. torchtitan's checkpoints were not tested.
"""
_LIMITS = """\
Only configurations are read, not scripts: arguments of `deepspeed.initialize`, the Trainer or
`fully_shard` are not detected, and `"auto"` is reported as unknown. The generated script is
data-parallel only, offloads all or nothing (as FSDP2 does), and supports AdamW, Adam and SGD;
other optimizers are reported. It was tested on CPUs with gloo in fp32, bf16 and fp16, not on
GPUs. LRRangeTest and OneCycle are not converted. The last table lists what only DeepSpeed's JSON
can tune: buckets, prefetching, persistence, NVMe, quantized communication. These are reasons to
stay with DeepSpeed; the strength of FSDP2 is its integration in torch: compilation, other mesh
axes, and checkpoints that load on any number of ranks.
"""


class ConversionSide(msgspec.Struct, frozen=True, kw_only=True):
    """One form's checkpoints.

    ``source``: the input of ``ckpt convert`` ('' if its checkpoints cannot be read), ``saved``: the
    call that saves it. ``options``: how to convert to what it loads by the call ``loaded``;
    ``mind``: what to check.
    """

    title: str
    saved: str
    source: str
    options: str
    loaded: str
    mind: str = ""


_ZERO_RANKS = (
    "ZeRO loads a checkpoint only on the number of ranks it was written for: `--ranks` is the "
    "job's data-parallel ranks; "
    "`zero2` is the stage of its JSON (else `zero1`, `zero3`). `--to universal` loads on any "
    "number of ranks, with "
    '`"checkpoint": {"load_universal": true}`'
)

#: By configuration format; None is plain torch, which has no configuration.
CONVERSION_SIDES: Mapping[ConfigFormat | None, ConversionSide] = {
    ConfigFormat.DEEPSPEED: ConversionSide(
        title="DeepSpeed",
        saved='engine.save_checkpoint("saved")',
        source="saved",
        options="--to zero2 --ranks 8",
        loaded='engine.load_checkpoint("converted")',
        mind=_ZERO_RANKS,
    ),
    ConfigFormat.FSDP2: ConversionSide(
        title="FSDP2",
        saved='dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id="saved")',
        source="saved",
        options="--to dcp",
        loaded='dcp.load(state, checkpoint_id="converted")',
        mind="call `model, optimizer = get_state_dict(module, adam)` before both, `set_state_dict` "
        "after the second; loads on any number of ranks",
    ),
    ConfigFormat.ACCELERATE_FSDP2: ConversionSide(
        title="Accelerate with FSDP",
        saved='accelerator.save_state("saved")',
        source="saved",
        options="--to accelerate --form fsdp-full",
        loaded='accelerator.load_state("converted")',
        mind="`fsdp_state_dict_type: FULL_STATE_DICT` for loading; later checkpoints may be "
        "sharded",
    ),
    ConfigFormat.ACCELERATE_DEEPSPEED: ConversionSide(
        title="Accelerate with DeepSpeed",
        saved='accelerator.save_state("saved")',
        source="saved",
        options="--to zero2 --ranks 8 --tag pytorch_model",
        loaded='accelerator.load_state("converted")',
        mind="`pytorch_model` is the tag that Accelerate loads; ranks and stage as with DeepSpeed",
    ),
    None: ConversionSide(
        title="torch, DDP",
        saved='torch.save({"model": …, "optimizer": …}, "saved.pt")',
        source="saved.pt",
        options="--to torch",
        loaded='torch.load("converted", weights_only=True, mmap=True)',
        mind="`model` and `optimizer` are for `load_state_dict` of the unwrapped module and of the "
        "optimizer. The optimizer's state is by index: create its groups in the order of the "
        "source. If the source is such a file, name the frozen weights: `--frozen 'vision.*'`",
    ),
}


class ConversionPair(msgspec.Struct, frozen=True):
    """The command that converts a checkpoint from one form to another."""

    origin: ConversionSide
    to: ConversionSide
    command: str


def conversion_pairs() -> Iterator[ConversionPair]:
    """Yield all pairs of different forms."""
    for origin in CONVERSION_SIDES.values():
        for to in CONVERSION_SIDES.values():
            if origin is not to:
                yield ConversionPair(
                    origin, to, f"holdfast ckpt convert {origin.source} converted {to.options}"
                )


def migration_page(note: str) -> str:
    """Return the guide as Markdown; ``note`` names its source."""
    mapped = [mapping for mapping in SETTING_MAPPINGS.values() if mapping.is_mapped]
    parts = [
        "# Migrating between DeepSpeed and FSDP2\n",
        note,
        _INTRODUCTION,
        "## Silent differences\n",
        _SILENT_DIFFERENCES,
        "## Example\n",
        _render_example(),
        "## Choosing a framework\n",
        _CHOICE,
        "\n".join(_render_choice(*case) for case in _CASES),
        "## Settings with a counterpart\n",
        "| DeepSpeed | fsdp2.json | torch | Accelerate with FSDP2 | difference |\n| --- | --- | "
        "--- | --- | --- |\n" + "".join(_render_mapping(mapping) for mapping in mapped),
        "## From FSDP2 to DeepSpeed\n",
        "The same table, from the second column to the first. In addition:\n",
        _TO_DEEPSPEED,
        "## Checkpoints\n",
        _CHECKPOINTS,
        "| from | to | command | load with |\n| --- | --- | --- | --- |\n"
        + "".join(_render_conversions()),
        "| form | save with | notes |\n| --- | --- | --- |\n" + "".join(_render_forms()),
        _TESTED,
        "## Settings without a counterpart\n",
        "| DeepSpeed | reason |\n| --- | --- |\n" + "".join(_render_unsupported()),
        "## Limits\n",
        _LIMITS,
    ]
    return "\n".join(parts).rstrip() + "\n"


def _render_choice(model: str, cluster: str, setup: TrainingSetup) -> str:
    choice = choose_framework(get_known_model(model), setup, Cluster.parse(cluster))
    margin = ", by a small margin" if choice.is_close else ""
    lines = [f"{model} on {cluster}, {setup.strategy}: {choice.recommended}{margin}"]
    lines += [
        f"  {reason.framework:9} {reason.weight}  {reason.sentence} [{reason.source}]"
        for reason in choice.reasons
    ]
    return "```text\n" + "\n".join(lines) + "\n```\n"


def _render_mapping(mapping: SettingMapping) -> str:
    cells = (
        f"`{mapping.key}`",
        f"`{mapping.fsdp2}`",
        mapping.torch,
        mapping.accelerate,
        mapping.difference,
    )
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n"


def _render_unsupported() -> Iterator[str]:
    rows = sorted(
        (mapping for mapping in SETTING_MAPPINGS.values() if not mapping.is_mapped),
        key=lambda mapping: (mapping.reason, mapping.key),
    )
    for reason, mappings in groupby(rows, key=lambda mapping: mapping.reason):
        keys = ", ".join(f"`{mapping.key}`" for mapping in mappings)
        yield f"| {keys} | {reason} |\n"


def _render_conversions() -> Iterator[str]:
    for pair in conversion_pairs():
        yield f"| {pair.origin.title} | {pair.to.title} | `{pair.command}` | `{pair.to.loaded}` |\n"


def _render_forms() -> Iterator[str]:
    for form in CONVERSION_SIDES.values():
        yield f"| {form.title} | `{form.saved}` | {form.mind} |\n"


def _render_example() -> str:
    migration = migrate_settings(_EXAMPLE, ConfigFormat.FSDP2)
    lines = [
        f"{setting.key} = {setting.value}  ->  {setting.target}" for setting in migration.mapped
    ]
    lines += [
        f"not converted: {unmapped.setting}: {unmapped.why}" for unmapped in migration.unmapped
    ]
    lines += [f"warning: {warning}" for warning in migration.warnings]
    text = "\n".join(lines)
    return (
        f"```json\n{json.dumps(_EXAMPLE, indent=2)}\n```\n\nConverted to "
        f"FSDP2:\n\n```text\n{text}\n```\n"
    )
