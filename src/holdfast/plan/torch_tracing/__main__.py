"""The process that loads the user's function.

It reads a request from stdin, and writes progress and the result as JSON lines to stdout. Output of
the user's code goes to stderr, whose last line is reported if the process dies.
"""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress

import msgspec

from holdfast.core.errors import InvalidValue
from holdfast.plan.torch_tracing.client import (
    ReportProgress,
    TraceError,
    TraceMessage,
    TraceProgress,
    TraceRequest,
    TraceResult,
)


def main() -> None:
    """Process the one request."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=TraceRequest)
    output = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)

    def write(line: TraceMessage) -> None:
        output.write(msgspec.json.encode(line) + b"\n")

    write(TraceProgress("importing torch"))
    try:
        import torch  # noqa: F401, PLC0415 - it may be missing, which is a result
    except ImportError:
        write(TraceError("", "", "", missing="torch"))
        return
    os.nice(5)
    limits = request.limits
    for resource_kind, limit in (
        (resource.RLIMIT_CPU, int(limits.timeout_s) + 60),
        (resource.RLIMIT_DATA, limits.memory_bytes),
    ):
        with suppress(ValueError, OSError):
            resource.setrlimit(resource_kind, (limit, resource.getrlimit(resource_kind)[1]))
    try:
        write(_trace(request, lambda text: write(TraceProgress(text))))
    except InvalidValue as error:
        write(TraceError(error.subject, error.why, error.next_step))


def _trace(request: TraceRequest, report: ReportProgress) -> TraceResult:
    import torch  # noqa: F401, PLC0415, RUF100

    from holdfast.plan.torch_tracing.description import summarize_module  # noqa: PLC0415 - imports torch
    from holdfast.plan.torch_tracing.kernels import emulate_gpu_kernels  # noqa: PLC0415 - as above
    from holdfast.plan.torch_tracing.loading import (  # noqa: PLC0415 - as above
        build_module,
        convert_user_errors,
        load_function,
    )
    from holdfast.plan.torch_tracing.simulation import simulate_module  # noqa: PLC0415 - as above

    report(f"loading {request.source}")
    if request.setup is not None:
        with emulate_gpu_kernels(request.setup):
            function = load_function(request.source)
            return TraceResult(
                simulated=simulate_module(
                    request.source, function, request.setup, request.gpu_memory, report
                )
            )
    function = load_function(request.source)
    with torch.device("meta"):
        module, _ = build_module(request.source, function)
    with convert_user_errors(request.source, "counting its weights"):
        return TraceResult(summary=summarize_module(module))


if __name__ == "__main__":
    main()
