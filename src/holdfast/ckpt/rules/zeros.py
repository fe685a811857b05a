"""Judges zeros: weights, shards, pages and rows that were lost, as opposed to zeros on purpose.

Zeros on purpose are common: LoRA's second matrices and other layers that start as zeros, padding
rows, pruned rows and blocks, moments of parameters without gradients. So a finding needs evidence
that contradicts them: second moments of a weight that is zero, the same weight of other layers,
zeros that follow pages of the file instead of rows or blocks of the tensor. In a file whose
checksums match, the writer stored its zeros. Other zeros are notes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from holdfast.causes.checkpoint.checkpoint_weights_all_zero import CHECKPOINT_WEIGHTS_ALL_ZERO
from holdfast.ckpt.rules.completeness import (
    describe_tensor,
    full_path,
    list_names,
    survey_fact,
    survey_finding,
)
from holdfast.ckpt.verify.survey import CheckpointSurvey, Key
from holdfast.ckpt.verify.values import ValueCounts
from holdfast.ckpt.verify.zero_runs import ZeroRun
from holdfast.core.findings import Fact, Finding, Level, Unknown
from holdfast.core.text import pluralize

#: A smaller shard may be zero legitimately (padding).
_MIN_SHARD_ELEMENTS = 256
#: More runs of zeros than this, in a tensor or in tensors, are pruned rows or blocks.
_MAX_LOST_RUNS = 2
#: Flat parameters of FSDP1 contain whole parameters, of which biases start as zeros.
_FLAT = "_flat_param"
_EMBEDDING = re.compile(r"embed|wte|wpe|tok|vocab|shared|position|head", re.IGNORECASE)
#: Weights that stay zero in some layers, where no gradient reaches them.
_LORA = re.compile(r"lora_?(b|up)|lora\.up", re.IGNORECASE)
#: Factors of residual branches, which start as zero (ReZero, gated cross-attention).
_GATE = re.compile(r"gate|alpha|gamma|lambda|resweight|rezero|scale_?shift", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")


def judge_zeros(survey: CheckpointSurvey) -> Iterator[Finding]:
    """Yield findings about zeros in the values that were read."""
    if not isinstance(survey.counts, Unknown):
        yield from _zero_weights(survey, survey.counts)
        yield from _zero_moments(survey, survey.counts)
        yield from _zero_shards(survey)
        yield from _zero_pages(survey)
        yield from _zero_rows(survey)


def _zero_weights(survey: CheckpointSurvey, counts: Mapping[Key, ValueCounts]) -> Iterator[Finding]:
    weights = {
        key: counted
        for key, counted in counts.items()
        if key[0] == "model" and _is_float(survey, key)
    }
    zero = [key for key, counted in weights.items() if counted.all_zero]
    matrices = [key for key in weights if _is_matrix(survey, key)]
    large = [key for key in zero if key in set(matrices)]
    if len(weights) > 1 and len(zero) == len(weights):
        message = f"every weight of {survey.contents.root} is all zeros"
        facts = _weight_facts(survey, large, weights)
        yield survey_finding(survey, CHECKPOINT_WEIGHTS_ALL_ZERO, message, facts)
    elif large:
        odd = [key for key in large if _contradicts(survey, key, counts, matrices)]
        is_most = 2 * sum(not _LORA.search(key[1]) for key in large) > len(matrices)
        level = Level.WARNING if odd or is_most else Level.NOTE
        named = odd or large
        verb = "is" if len(named) == 1 else "are"
        message = f"{pluralize(len(named), 'weight')} of {survey.contents.root} {verb} all zeros: "
        message += list_names([describe_tensor(key) for key in named])
        message += "" if level is Level.WARNING else " (usual before training)"
        yield _zeros(survey, message, _weight_facts(survey, named, weights), 0.6, level)
    yield from _zero_scalars(
        survey, [key for key in zero if not survey.contents.tensors[key[1]].shape], weights
    )


def _contradicts(
    survey: CheckpointSurvey,
    key: Key,
    counts: Mapping[Key, ValueCounts],
    matrices: Sequence[Key],
) -> bool:
    """Return whether a weight that is zero was trained, or is not zero in other layers."""
    moments = counts.get(("exp_avg_sq", key[1]))
    if moments is not None and moments.elements:
        return moments.other and any(step > 1 for step in survey.steps)
    kind = _NUMBER.sub("#", key[1])
    return not _LORA.search(key[1]) and any(
        _NUMBER.sub("#", other[1]) == kind and counts[other].other for other in matrices
    )


def _weight_facts(
    survey: CheckpointSurvey, keys: Sequence[Key], weights: Mapping[Key, ValueCounts]
) -> tuple[Fact, ...]:
    return tuple(
        survey_fact(survey, f"{describe_tensor(key)}: {weights[key].elements:,} zeros")
        for key in keys
    )


def _zero_scalars(
    survey: CheckpointSurvey, zero: Sequence[Key], weights: Mapping[Key, ValueCounts]
) -> Iterator[Finding]:
    """Detect scalars zeroed by torch's consolidation of Hugging Face shards."""
    scalars = [key for key in weights if not survey.contents.tensors[key[1]].shape]
    if (
        zero
        and len(zero) == len(scalars)
        and not all(_GATE.search(name) for _, name in zero)
        and survey.contents.format in ("safetensors", "huggingface")
    ):
        message = "every scalar tensor is 0.0, which is what torch's consolidation produces: "
        message += list_names([name for _, name in zero])
        facts = tuple(survey_fact(survey, f"{key[1]} is 0.0") for key in zero)
        yield _zeros(survey, message, facts, 0.5)


def _zero_moments(survey: CheckpointSurvey, counts: Mapping[Key, ValueCounts]) -> Iterator[Finding]:
    """Detect an optimizer that counted steps without receiving gradients."""
    moments = [
        counts for key, counts in counts.items() if key[0] == "exp_avg_sq" and counts.elements
    ]
    if (
        len(moments) > 1
        and all(counts.all_zero for counts in moments)
        and any(step > 1 for step in survey.steps)
    ):
        root, steps = survey.contents.root, max(survey.steps)
        message = f"the optimizer of {root} is at step {steps:,}, but all its moments are 0"
        facts = (survey_fact(survey, f"exp_avg_sq of {len(moments):,} parameters is all zeros"),)
        yield _zeros(survey, message, facts, 0.7)


def _zero_shards(survey: CheckpointSurvey) -> Iterator[Finding]:
    """Detect an all-zero shard of one rank or file in a tensor that is not all zeros."""
    shards = [
        zero
        for zero in survey.empty
        if zero.key[0] in ("model", "half")
        and zero.shard.numel >= _MIN_SHARD_ELEMENTS
        and not _EMBEDDING.search(zero.key[1])  # the last shard may be padding
        and len(_shape(survey, zero.key)) > 1
    ]
    if shards:
        files = list(dict.fromkeys(zero.shard.file for zero in shards))
        names = list(dict.fromkeys(describe_tensor(zero.key) for zero in shards))
        message = f"the shard of {list_names(names)} in {list_names(files)} is all zeros, "
        facts = tuple(
            survey_fact(
                survey,
                f"{describe_tensor(zero.key)}: {zero.shard.numel:,} zeros "
                f"from {list(zero.shard.start)} on",
                zero.shard.file,
            )
            for zero in shards
        )
        message += "the rest of the tensor is not"
        yield _zeros(survey, message, facts, 0.8)


def _zero_pages(survey: CheckpointSurvey) -> Iterator[Finding]:
    """Detect pages of zeros inside tensors, which a file system or disk lost."""
    lost = [
        run
        for key, runs in _runs_by_tensor(survey).items()
        if not key[1].endswith(_FLAT)
        for run in _lost(runs)
    ]
    if not lost:
        return
    level = Level.WARNING if len(lost) <= _MAX_LOST_RUNS else Level.NOTE
    if odd := [run for run in lost if not run.whole_blocks]:
        lost, level = odd, Level.ERROR
    names = list(dict.fromkeys(describe_tensor(run.key) for run in lost))
    files = list(dict.fromkeys(full_path(survey, run.file) for run in lost))
    message = f"pages of zeros inside {list_names(names)} ({list_names(files)}): "
    message += "zeros from one page boundary of the file to another, not whole rows"
    message += "" if odd else "; pruned blocks look the same"
    facts = tuple(_run_fact(survey, run) for run in lost)
    yield _zeros(survey, message, facts, 0.8 if odd else 0.5, level)


def _runs_by_tensor(survey: CheckpointSurvey) -> dict[Key, list[ZeroRun]]:
    """Return the runs in files without checksums: others are as the writer stored them."""
    runs: dict[Key, list[ZeroRun]] = {}
    for run in survey.zero_runs:
        if run.file in survey.bare:
            runs.setdefault(run.key, []).append(run)
    return runs


def _lost(runs: Sequence[ZeroRun]) -> Sequence[ZeroRun]:
    """Return the runs that are lost pages; a mask or pruned weight has many others."""
    lost = [run for run in runs if run.whole_pages and not run.whole_rows]
    return lost if 2 * len(lost) >= len(runs) else ()


def _zero_rows(survey: CheckpointSurvey) -> Iterator[Finding]:
    """Detect rows of zeros inside tensors; those of embeddings and at an end are padding."""
    by_tensor = {
        key: rows
        for key, runs in _runs_by_tensor(survey).items()
        if key[0] == "model" and not _EMBEDDING.search(key[1])
        if (rows := [run for run in runs if run.whole_rows and not run.at_end])
    }
    if by_tensor:
        pruned = max(len(by_tensor), *map(len, by_tensor.values())) > _MAX_LOST_RUNS
        message = f"rows of zeros in {list_names([describe_tensor(key) for key in by_tensor])} "
        message += f"of {survey.contents.root}{' (as pruned weights have)' if pruned else ''}"
        facts = tuple(_run_fact(survey, run) for rows in by_tensor.values() for run in rows)
        level = Level.NOTE if pruned else Level.WARNING
        yield _zeros(survey, message, facts, 0.5, level)


def _run_fact(survey: CheckpointSurvey, run: ZeroRun) -> Fact:
    text = f"{describe_tensor(run.key)}: zeros from byte {run.start:,} to {run.stop:,}"
    return survey_fact(survey, text, run.file)


def _is_float(survey: CheckpointSurvey, key: Key) -> bool:
    return (
        "float" in survey.contents.tensors[key[1]].dtype and key[1] not in survey.contents.buffers
    )


def _is_matrix(survey: CheckpointSurvey, key: Key) -> bool:
    tensor = survey.contents.tensors[key[1]]
    return len(tensor.shape) > 1 and tensor.numel > 1


def _shape(survey: CheckpointSurvey, key: Key) -> tuple[int, ...]:
    tensors = survey.contents.tensors if key[0] == "model" else survey.contents.halves
    return tensors[key[1]].shape


def _zeros(
    survey: CheckpointSurvey,
    message: str,
    facts: tuple[Fact, ...],
    confidence: float,
    level: Level = Level.WARNING,
) -> Finding:
    return survey_finding(
        survey, CHECKPOINT_WEIGHTS_ALL_ZERO, message, facts, level=level, confidence=confidence
    )
