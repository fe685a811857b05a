"""Find where a rank may raise while the others go on: explicit ``raise`` and calls that fail."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from enum import Enum

import msgspec
from msgspec.structs import replace

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.effects import (
    Branch,
    ExitEffect,
    FunctionCall,
    LoopEffect,
    Marker,
    Operation,
    Try,
    final_exit,
)
from holdfast.lint.abstract_domain.exceptions import catches
from holdfast.lint.abstract_domain.values import Value, is_rank_only
from holdfast.lint.abstract_state.arguments import Arguments, LibraryCall
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.divergence.futures import Block, Goal

#: The marker of a call that may fail on one rank alone, with the names of its exceptions.
MAY_RAISE = "may raise"
#: Calls that access files, other programs or the network, and their exceptions.
_ACCESSES = frozenset({
    "subprocess.run", "subprocess.check_call", "subprocess.check_output",
    "open", "torch.save", "torch.load", "os.makedirs", "os.mkdir", "os.remove", "os.rename",
    "os.replace", "os.unlink", "os.symlink", "shutil.copy", "shutil.copyfile", "shutil.copytree",
    "shutil.move", "shutil.rmtree", "shutil.unpack_archive", "shutil.make_archive", "numpy.load",
    "numpy.save", "requests.get", "requests.post", "requests.put", "urllib.request.urlopen",
    "urllib.request.urlretrieve", "torch.hub.download_url_to_file",
    "torch.hub.load_state_dict_from_url", "huggingface_hub.snapshot_download",
    "huggingface_hub.hf_hub_download", "datasets.load_dataset", "safetensors.torch.load_file",
    "safetensors.torch.save_file", "wget.download", "gdown.download",
})  # fmt: skip
_ACCESS_ERRORS = "OSError FileNotFoundError FileExistsError PermissionError CalledProcessError"
#: Methods of paths that access files.
_ACCESS_METHODS = frozenset({
    "write_text", "write_bytes", "read_text", "read_bytes", "mkdir", "unlink", "rename", "touch",
    "symlink_to", "save_pretrained", "push_to_hub", "upload_file",
})  # fmt: skip
#: Exceptions of calls that parse data.
_PARSE_ERRORS = {
    "json.loads": "JSONDecodeError", "ast.literal_eval": "ValueError SyntaxError",
    "yaml.safe_load": "YAMLError", "pickle.loads": "UnpicklingError",
    "datetime.datetime.strptime": "ValueError", "datetime.datetime.fromisoformat": "ValueError",
    "base64.b64decode": "ValueError", "PIL.Image.open": "OSError",
}  # fmt: skip
#: Exceptions of unknown functions that process one element of the data.
_USER_ERRORS = "RuntimeError ValueError OSError"
#: Exceptions at the end of an iterator or a list.
_END_ERRORS = {"next": "StopIteration", "pop": "IndexError", "popleft": "IndexError"}
#: Maximum depth and number of calls in which to look for exceptions.
_MAX_DEPTH, _MAX_CALLS = 6, 500
#: The calls that lead to a point, outermost first.
_Calls = tuple[SourceLine, ...]
#: What a forward pass raises on one rank alone: a batch of another shape, memory.
_FORWARD_ERRORS = ("RuntimeError", "OutOfMemoryError")
#: Tags of functions that may fail.
_FAILING_TAGS = frozenset({MAY_RAISE, "forward"})
#: Exceptions at the end of an iteration, and of programming errors, which all ranks have.
_RAISED_BY_ALL = frozenset({
    "StopIteration", "StopAsyncIteration", "NotImplementedError", "TypeError", "AttributeError",
    "ImportError", "ModuleNotFoundError", "AssertionError", "NameError",
})  # fmt: skip


def record_failure(call: LibraryCall) -> None:
    """Record a library call that may fail on one rank alone.

    It accesses files on some ranks or at a rank's own path, takes an element of a sequence whose
    length differs, or parses one element of the data in a ``try`` block.
    """
    frame, name = call.frame, call.name
    accesses = name in _ACCESSES or (name in _ACCESS_METHODS and call.receiver_node is not None)
    if not accesses and not frame.try_depth and not frame.in_tried_loop:
        return
    values = call.arguments.all_values
    errors = ""
    if accesses:
        by_rank = [frame.control, *(value.content for value in (call.receiver, *values))]
        if any(taint and is_rank_only(taint) for taint in by_rank):
            errors = _ACCESS_ERRORS
    elif name in _END_ERRORS and len(values) < 2:
        over = call.first() if name == "next" else call.receiver
        errors = _END_ERRORS[name] if over.length else ""
    elif name in _PARSE_ERRORS and frame.may_survive and not all(map(_is_uniform, values)):
        errors = _PARSE_ERRORS[name]
    if errors:
        frame.add_effect(Marker(MAY_RAISE, call.location, errors))


def record_user_failure(frame: Frame, node: ast.expr, arguments: Arguments) -> None:
    """Record a call of unknown code with an element of the data in a ``try`` block."""
    if not (frame.try_depth and frame.loop_depth):
        return
    nodes = zip(arguments.nodes, arguments.positional, strict=True)
    if any(
        argument is not None
        and not _is_uniform(value)
        and frame.element_names & variable_names(argument)
        for argument, value in nodes
    ):
        frame.add_effect(Marker(MAY_RAISE, frame.location(node), _USER_ERRORS))


def variable_names(node: ast.expr) -> set[str]:
    """Return the names in an expression."""
    return {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}


def _is_uniform(value: Value) -> bool:
    return value.known and not value.content


class VaryingTests(Enum):
    """The tests without taint that count as different on each rank, as they depend on its data.

    ``IN_LOOPS``: those in a loop of the block; ``UNKNOWN``: also unknown ones, as in a loop around
    it.
    """

    NONE = "none"
    IN_LOOPS = "in loops"
    UNKNOWN = "unknown"
    ALL = "all"

    def includes(self, branch: Branch) -> bool:
        """Return True if the test of a branch may differ between ranks."""
        may_vary = self is VaryingTests.ALL or (self is VaryingTests.UNKNOWN and not branch.known)
        return may_vary and not branch.agreed

    def in_loop(self) -> VaryingTests:
        """Return the tests in a loop of the block."""
        return VaryingTests.NONE if self is VaryingTests.NONE else VaryingTests.ALL


class Failure(msgspec.Struct, frozen=True, eq=False):
    """An exception on one rank: where it is raised, and where the other ranks go on.

    ``call_chain`` leads to it; ``goal`` is the point that ranks without the exception reach.
    """

    exception: str
    call_chain: tuple[SourceLine, ...]
    goal: Goal


def iter_failures(block: Block, varying: VaryingTests) -> Iterator[Failure]:
    """Yield the exceptions that leave a block on one rank alone."""
    return _FailureWalker().walk(block, (), None, varying)


class _FailureWalker:
    """Walks a block and the functions that it calls, up to a number of calls."""

    def __init__(self) -> None:
        self._remaining = _MAX_CALLS

    def walk(
        self, block: Block, calls: _Calls, goal: Goal | None, varying: VaryingTests
    ) -> Iterator[Failure]:
        """Yield the exceptions that leave a block, entered through ``calls``.

        ``goal`` is where ranks continue that do not get here.
        """
        for at, effect in enumerate(block.path):
            match effect:
                case ExitEffect(keyword="raise", exception=exception, location=location):
                    if goal is not None and exception not in _RAISED_BY_ALL:
                        yield Failure(exception, (*calls, location), goal)
                case Marker(name="may raise", detail=names, location=location):
                    for name in names.split():
                        yield Failure(name, (*calls, location), goal or block.point(at + 1))
                case Operation(kind="forward", location=location):
                    for name in _FORWARD_ERRORS:
                        yield Failure(name, (*calls, location), goal or block.point(at + 1))
                case FunctionCall() | Branch() | LoopEffect() | Try():
                    yield from self._nested(block, at, calls, goal, varying)
                case _:
                    pass

    def _nested(
        self, block: Block, at: int, calls: _Calls, goal: Goal | None, varying: VaryingTests
    ) -> Iterator[Failure]:
        match effect := block.path[at]:
            case FunctionCall(location=location, callee=callee):
                may_fail = callee.raises or callee.tags & _FAILING_TAGS
                if may_fail and len(calls) < _MAX_DEPTH and self._remaining:
                    self._remaining -= 1
                    yield from self.walk(block.called(at), (*calls, location), goal, varying)
            case Branch(yes=yes, no=no):
                is_shown = any(not source.weak for source in effect.taint)
                varies = is_shown or varying.includes(effect)
                for side, other in ((yes, no), (no, yes)):
                    inner = block.nested(other, at).point(0) if varies else goal
                    yield from self.walk(block.nested(side, at), calls, inner, varying)
            case LoopEffect(body=body):
                yield from self.walk(block.loop_body(body, at), calls, goal, varying.in_loop())
            case Try(body=body):
                failures = self.walk(block.guarded(body, at), calls, goal, varying)
                yield from _passing_failures(effect, failures)


def _passing_failures(block: Try, failures: Iterator[Failure]) -> Iterator[Failure]:
    """Yield the failures that no handler of a ``try`` catches, or that one raises again."""
    if (end := final_exit(block.final_body)) is not None and end.keyword != "raise":
        return
    for failure in failures:
        handled = next(
            (
                handled
                for _, caught, handled in block.handlers
                if catches(caught, failure.exception)
            ),
            None,
        )
        end = final_exit(handled) if handled is not None else None
        if handled is None:
            yield failure
        elif end is not None and end.keyword == "raise":
            yield replace(failure, exception=end.exception or failure.exception)
