"""The options that state the order of a model's parameters: a file with names, or its code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from holdfast.core.errors import InvalidValue


def order_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--order`` and ``--model`` to a command."""
    order = click.option(
        "--order",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="File with one parameter name per line, in model.named_parameters() order; needed if "
        "the optimizer numbers its parameters and the weights are in another order (safetensors).",
    )
    model = click.option(
        "--model",
        metavar="FILE.py:NAME",
        default="",
        help="Take the order from the model that this function or class builds without arguments; "
        "its code runs in a process of its own, without memory for the weights.",
    )
    return order(model(command))


def read_order(order: Path | None, model: str) -> tuple[str, ...]:
    """Return the parameter names in order; () if neither option is given.

    Raises:
        InvalidValue: both are given, the file is invalid, or the model cannot be built.
        MissingFile, MissingExtra: the file, or torch, is missing.
    """
    if order is not None and model:
        raise InvalidValue("--model", why="--order states the order already")
    if model:
        from holdfast.plan.torch_tracing import describe_module

        try:
            return describe_module(model).names
        except InvalidValue as error:
            next_step = error.next_step
            if not next_step or "formulas" in next_step:
                next_step = "name a function that builds the model, or use --order FILE"
            raise InvalidValue(error.subject, why=error.why, next_step=next_step) from error
    if order is not None:
        from holdfast.ckpt.convert.names import read_parameter_order

        return read_parameter_order(order)
    return ()
