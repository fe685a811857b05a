"""Finds and calls the function that builds a module: ``file.py:function`` or ``package.module:function``."""

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

from holdfast.errors import BadValue, HoldfastError

#: Of a step: the module, sequences of a micro-batch, their tokens. It returns the loss.
Step = Callable[[nn.Module, int, int], Tensor]


def load(source: str) -> Callable[..., Any]:
    """The function itself.

    Raises:
        BadValue: there is no such module or function, or importing it fails.
    """
    place, _, name = source.rpartition(":")
    if not place or not name.isidentifier():
        raise BadValue(
            source, why="it names no function", next_step="write file.py:function or package.module:function"
        )
    with users_errors(source, "importing it"):
        module = _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    found = getattr(module, name, None)
    if not callable(found):
        raise BadValue(source, why=f"{place} has no function {name}")
    return found  # type: ignore[no-any-return]


def _from_file(path: Path) -> Any:
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise BadValue(str(path), why="it cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def build(source: str, function: Callable[..., Any], layers: int | None = None) -> tuple[nn.Module, Step | None]:
    """Call it, with so many layers where it takes ``layers``.

    Raises:
        BadValue: it fails, or returns no module.
    """
    given = {"layers": layers} if layers is not None and takes_layers(function) else {}
    with users_errors(source, "building the module"):
        built = function(**given)
    module, step = built if isinstance(built, tuple) and len(built) == 2 else (built, None)
    if not isinstance(module, nn.Module) or not (step is None or callable(step)):
        what = f"it returned {type(built).__name__}"
        raise BadValue(source, why=what, next_step="return an nn.Module, or a pair of it and a step")
    # What is compiled is run op by op.
    return getattr(module, "_orig_mod", module).train(), step


def takes_layers(function: Callable[..., Any]) -> bool:
    """Depth is a parameter of the function's."""
    try:
        return "layers" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


@contextmanager
def users_errors(source: str, doing: str) -> Iterator[None]:
    """Whatever the user's code raises, as one sentence with the line of theirs that it came through.

    Raises:
        BadValue: it raised something.
    """
    try:
        yield
    except HoldfastError:
        raise
    except MemoryError:
        raise BadValue(source, why=f"{doing} took more memory than it may", next_step=_NO_MEMORY) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - what code of another's raises is not known
        said = " ".join(str(error).split())[:300]
        more = _NO_MEMORY if "allocate memory" in said or "out of memory" in said.casefold() else None
        if type(error).__name__ == "DataDependentOutputException":
            more = "fake tensors have no values to decide by"
        why = f"{doing} failed{_where(error)}: {type(error).__name__}{': ' if said else ''}{said}"
        raise BadValue(source, why=why, next_step=more) from None


_NO_MEMORY = "build it without weights: no .cuda(), no from_pretrained, no device of its own"


def _where(error: BaseException) -> str:
    """The last line that is not of an installed package or of ours."""
    ours, python = str(Path(__file__).parents[2]), str(Path(traceback.__file__).parent)
    inner = (ours, python, "site-packages", "dist-packages", "<frozen")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(each in frame.filename for each in inner)
    ]
    return f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
