"""Changes for a run that ran out of memory, from its description and its logs or snapshots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from holdfast.core.errors import InvalidValue
from holdfast.core.findings import Finding
from holdfast.core.text import format_percent
from holdfast.diagnose.pipeline import DiagnosisResult, diagnose
from holdfast.plan.advice.relief import MemoryRelief, ReliefOption, find_memory_relief
from holdfast.plan.memory.estimate import MemoryFit
from holdfast.plan.request.command import plan_command
from holdfast.plan.request.plan_request import (
    PlannedRun,
    PlanRequest,
    estimate_model_memory,
    estimate_model_step_time,
    evaluate_setup,
)
from holdfast.plan.request.setup import batch_splits, build_setup, count_data_ranks
from holdfast.plan.setup import ActivationCheckpointing, TrainingSetup
from holdfast.plan.step_time.estimate import StepTime
from holdfast.report.document import ReportDocument, ReportRow, ReportSection
from holdfast.report.evidence_summary import size_text
from holdfast.watcher import oom_messages
from holdfast.watcher.rules.gpu_memory import FRAGMENTED, KEPT, TAKEN

_MAX_OPTIONS = 12


class ReliefPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The run as described, the cause in its logs or snapshots (None: unknown), and the changes.

    ``observed_bytes``: bytes in tensors at the failure including the failed request; None if
    unknown.
    """

    request: PlanRequest
    run: PlannedRun
    cause: Finding | None
    observed_bytes: int | None
    relief: MemoryRelief


def plan_relief(request: PlanRequest, paths: Sequence[str]) -> ReliefPlan:
    """Return changes for the run that ``request`` describes and whose logs are under ``paths``.

    Omitted options default to no memory savings: no activation checkpointing, one micro-batch.

    Raises:
        MissingFile: none of the paths exists.
        InvalidValue: several kinds of GPU, a user's module, or inconsistent degrees and batches.
    """
    if len(request.clusters) > 1 or not request.model.submodels:
        raise InvalidValue(
            "--failed", why="changes are only known for transformers on GPUs of one kind"
        )
    diagnosis = diagnose(paths)
    data = count_data_ranks(request)
    micro_batch, accumulation = batch_splits(request, data)[-1]
    run = evaluate_setup(
        request,
        build_setup(
            request,
            data,
            micro_batch,
            accumulation,
            request.recompute or ActivationCheckpointing.NONE,
        ),
    )
    missing_bytes, observed_bytes = _missing_bytes(diagnosis)
    root = diagnosis.verdict.root
    cause = root if root is not None and root.code.startswith("MEM") else None
    relief = find_memory_relief(
        lambda setup: estimate_model_memory(request.model, setup, run.cluster),
        lambda setup: _step_time(request, setup),
        run.setup,
        missing_bytes,
    )
    return ReliefPlan(
        request=request, run=run, cause=cause, observed_bytes=observed_bytes, relief=relief
    )


def _step_time(request: PlanRequest, setup: TrainingSetup) -> StepTime:
    return estimate_model_step_time(
        request.model, setup, request.first_cluster.resized(setup.world_size), request.conditions
    )


def _missing_bytes(diagnosis: DiagnosisResult) -> tuple[int | None, int | None]:
    """Return the least bytes missing, and the bytes that tensors needed.

    Both are of the rank with the largest gap; None if unknown.
    """
    observations = []
    for device in (
        device
        for snapshot in diagnosis.snapshots
        for device in snapshot.devices
        if device.failed_requests
    ):
        request = device.failed_requests[-1]
        observations.append((request.size - (request.free or 0), device.held + request.size))
    for signal in diagnosis.logs.signals if diagnosis.logs is not None else ():
        message = (
            oom_messages.parse_oom_message(signal.line.text)
            if signal.name == "cuda-out-of-memory"
            else None
        )
        if message is not None and message.requested is not None and message.allocated is not None:
            observations.append(
                (message.requested - (message.free or 0), message.allocated + message.requested)
            )
    missing_bytes, observed_bytes = max(
        observations, default=(None, None), key=lambda observation: observation[0] or 0
    )
    return (max(missing_bytes, 0) if missing_bytes is not None else None), observed_bytes


def relief_json(plan: ReliefPlan) -> dict[str, Any]:
    """Return the result for ``--json``: bytes, and slowdowns as shares."""
    relief = plan.relief
    return {
        "needs": relief.memory.worst,
        "memory": relief.memory.gpu_memory,
        "answer": relief.memory.fit,
        "missing": relief.missing_bytes,
        "seen": plan.observed_bytes,
        "changes": [
            {
                "what": item.change.what,
                "cost": item.change.cost,
                "saved": item.saved,
                "lost": item.slowdown,
                "enough": item.sufficient,
                "command": plan_command(plan.request, item.change.setup),
            }
            for item in relief.options
        ],
        "together": [
            {"what": item.what, "saved": item.saved, "answer": item.memory.fit}
            for item in relief.combined
        ],
    }


# ---- terminal output


def relief_document(plan: ReliefPlan) -> ReportDocument:
    """Return the report: the cause, the modelled memory, and the changes."""
    worst, memory = plan.relief.memory.worst, plan.relief.memory.gpu_memory or 0
    prediction = (
        f"predicted: {size_text(worst.total)} of {size_text(memory)}: {plan.relief.memory.fit}"
    )
    rows = [ReportRow(prediction)]
    if plan.observed_bytes is not None:
        rows.append(
            ReportRow(
                f"tensors at the failure: {size_text(plan.observed_bytes)} with the failed "
                f"request; predicted peak: {size_text(worst.tensors)}"
            )
        )
    if plan.relief.missing_bytes:
        rows.append(ReportRow(f"at least {size_text(plan.relief.missing_bytes)} were missing"))
    parts = ", ".join(f"{name} {size_text(nbytes)}" for name, nbytes in list(worst.parts())[:6])
    rows.append(ReportRow(f"breakdown: {parts}", style="aside"))
    if plan.relief.memory.fit is MemoryFit.FITS:
        rows.append(
            ReportRow(
                "the described run differs from the failed one, or something else uses memory"
            )
        )
    is_specific = plan.cause is not None and plan.cause.cause in (FRAGMENTED, TAKEN, KEPT)
    first = (
        [remedy.text for remedy in plan.cause.remedies[:1]]
        if plan.cause is not None and is_specific
        else []
    )
    title = (
        plan.cause.message if plan.cause is not None else "the logs do not show why memory ran out"
    )
    sections = (
        ReportSection("memory", tuple(rows)),
        ReportSection("first", tuple(ReportRow(text) for text in first)),
        ReportSection("changes", tuple(_change_rows(plan))),
    )
    return ReportDocument(
        "✗", title, "error", tuple(section for section in sections if section.rows)
    )


def _change_rows(plan: ReliefPlan) -> Iterator[ReportRow]:
    for number, option in enumerate(plan.relief.options[:_MAX_OPTIONS], 1):
        yield ReportRow(
            _describe_option(option),
            mark=f"{number}.",
            style="strong" if option.sufficient else "plain",
        )
        if option.sufficient:
            yield ReportRow(plan_command(plan.request, option.change.setup), style="command")
    for change in plan.relief.combined:
        yield ReportRow(
            f"plus {change.what}: {size_text(change.saved)} less, {change.memory.fit}", mark="+"
        )


def _describe_option(option: ReliefOption) -> str:
    speed = (
        "speed unknown"
        if option.slowdown is None
        else (
            f"{format_percent(option.slowdown)} slower" if option.slowdown > 0.005 else "same speed"
        )
    )
    sufficiency = "sufficient" if option.sufficient else "not sufficient alone"
    return (
        f"{option.change.what}: {size_text(option.saved)} less, {speed}, {sufficiency} "
        f"(cost: {option.change.cost})"
    )
