"""Load and call the function that builds a module."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from holdfast.core.errors import HoldfastError, InvalidValue

#: Takes the module, sequences per micro-batch and tokens per sequence; returns the loss.
StepFunction = Callable[[nn.Module, int, int], Tensor]


def load_function(source: str) -> Callable[..., Any]:
    """Load the function.

    Raises:
        InvalidValue: no such module or function, or importing it fails.
    """
    module_path, _, name = source.rpartition(":")
    if not module_path or not name.isidentifier():
        raise InvalidValue(
            source,
            why="the function is missing",
            next_step="use file.py:function or package.module:function",
        )
    with convert_user_errors(source, "importing it"):
        module = (
            _import_file(Path(module_path))
            if module_path.endswith(".py")
            else importlib.import_module(module_path)
        )
    function = getattr(module, name, None)
    if not callable(function):
        raise InvalidValue(source, why=f"{module_path} has no function {name}")
    return function  # type: ignore[no-any-return]


def _import_file(path: Path) -> Any:
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InvalidValue(str(path), why="cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def build_module(
    source: str, function: Callable[..., Any], layers: int | None = None
) -> tuple[nn.Module, StepFunction | None]:
    """Call the function, with a number of layers if it takes ``layers``.

    Raises:
        InvalidValue: it fails, or returns no module.
    """
    arguments = {"layers": layers} if layers is not None and takes_layers(function) else {}
    with convert_user_errors(source, "building the module"):
        built = function(**arguments)
    module, step = built if isinstance(built, tuple) and len(built) == 2 else (built, None)
    if not isinstance(module, nn.Module) or not (step is None or callable(step)):
        reason = f"it returned {type(built).__name__}"
        raise InvalidValue(
            source,
            why=reason,
            next_step="return an nn.Module, or a pair of a module and a step function",
        )
    # Unwrap compiled modules: they are run op by op.
    return getattr(module, "_orig_mod", module).train(), step


def takes_layers(function: Callable[..., Any]) -> bool:
    """Return whether the function has a parameter ``layers``."""
    try:
        return "layers" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


@contextmanager
def convert_user_errors(source: str, activity: str) -> Iterator[None]:
    """Convert any error of the user's code to one sentence with the user's source line.

    Raises:
        InvalidValue: the code raised an error.
    """
    try:
        yield
    except HoldfastError:
        raise
    except MemoryError:
        raise InvalidValue(
            source, why=f"{activity} exceeded the memory limit", next_step=_BUILD_WITHOUT_WEIGHTS
        ) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything
        message = " ".join(str(error).split())[:300]
        next_step = (
            _BUILD_WITHOUT_WEIGHTS
            if "allocate memory" in message or "out of memory" in message.casefold()
            else None
        )
        if type(error).__name__ == "DataDependentOutputException":
            next_step = "fake tensors have no values: avoid data-dependent control flow"
        why = (
            f"{activity} failed{_error_location(error)}: "
            f"{type(error).__name__}{': ' if message else ''}{message}"
        )
        raise InvalidValue(source, why=why, next_step=next_step) from None


_BUILD_WITHOUT_WEIGHTS = (
    "build it without weights: no .cuda(), no from_pretrained, no explicit device"
)


def _error_location(error: BaseException) -> str:
    """Return the last frame outside of installed packages and holdfast."""
    package_dir, stdlib_dir = str(Path(__file__).parents[2]), str(Path(traceback.__file__).parent)
    excluded = (package_dir, stdlib_dir, "site-packages", "dist-packages", "<frozen")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(path in frame.filename for path in excluded)
    ]
    return f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
