"""Find long work on one rank that the others wait for: downloads, subprocesses, preprocessing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.effects import (
    Branch,
    Effect,
    FunctionCall,
    GroupScope,
    LoopEffect,
    Marker,
    Operation,
    Try,
    iter_operations,
    summarize_path,
)
from holdfast.lint.abstract_domain.values import Taint, TaintKind, is_rank_only, without_kinds
from holdfast.lint.abstract_state.arguments import LibraryCall
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.sources.modules import Function

#: Library calls that take as long as a network transfer, a disk or another program.
_LONG_CALLS = frozenset({
    "subprocess.run", "subprocess.call", "subprocess.check_call", "os.system",
    "urllib.request.urlretrieve", "wget.download", "gdown.download", "nltk.download",
    "datasets.load_dataset", "huggingface_hub.snapshot_download", "huggingface_hub.hf_hub_download",
    "torch.hub.download_url_to_file", "torch.hub.load_state_dict_from_url", "shutil.copytree",
    "shutil.unpack_archive", "shutil.make_archive",
    "torchvision.datasets.utils.download_and_extract_archive",
})  # fmt: skip
#: Shortest sleep in seconds that counts as work: half of the shortest default timeout.
_SLEEP_S = 300
#: Functions of the program with these names process all data if they contain a loop.
_LONG_FUNCTION_NAMES = re.compile(
    r"_?(?:(?:download|pre_?process|tokeni[sz]e)(?:_\w+)?"
    r"|(?:run_|do_)?(?:evaluate|validate|evaluation|validation)"
    r"|(?:prepare|build|make|create)_(?:data|datasets?|corpus|index|indices|cache|vocab))",
    re.IGNORECASE,
)
_LOOPS = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp, ast.DictComp)
_NO_GRADIENTS = re.compile(r"\b(?:no_grad|inference_mode)\b")
#: Words in tests that select one rank; other rank-dependent tests are ignored here.
_ONE_RANK_TEST = re.compile(r"rank|main|master|zero|first|chief|primary|leader", re.IGNORECASE)
#: Arguments of a subprocess whose output is read, which is usually short.
_OUTPUT_ARGUMENTS = frozenset({"capture_output", "stdout", "timeout"})
#: Programs that end within seconds: they print, or hand a job to a scheduler.
_BRIEF_PROGRAMS = re.compile(
    r"(?:nvidia-smi|sbatch|scancel|squeue|scontrol|kubectl|mkdir|ln|touch|chmod|echo|ls|hostname)\b"
)


def record_work(call: LibraryCall) -> None:
    """Record a library call that takes long and has no timeout of its own."""
    arguments = call.arguments
    seconds = arguments.get(0, "secs") if call.name == "time.sleep" else None
    slept = (
        seconds is not None
        and isinstance(seconds.const, (int, float))
        and seconds.const >= _SLEEP_S
    )
    mapped = call.name == "map" and bool({"num_proc", "batched"} & arguments.named.keys())
    if (
        slept
        or mapped
        or (
            call.name in _LONG_CALLS
            and not _OUTPUT_ARGUMENTS & arguments.named.keys()
            and not _is_brief(call.node)
        )
    ):
        call.frame.add_effect(
            Marker("work", call.location, "time.sleep()" if slept else f"{call.name}()")
        )


def _is_brief(node: ast.AST) -> bool:
    """Return True for a command that begins with the name of a program that ends in seconds."""
    command = node.args[0] if isinstance(node, ast.Call) and node.args else None
    words = command.elts[:1] if isinstance(command, (ast.List, ast.Tuple)) else [command]
    first = words[0] if words else None
    if isinstance(first, ast.JoinedStr):
        first = first.values[0] if first.values else None
    return (
        isinstance(first, ast.Constant)
        and isinstance(first.value, str)
        and _BRIEF_PROGRAMS.match(first.value.lstrip()) is not None
    )


def record_function_work(frame: Frame, node: ast.expr, function: Function) -> None:
    """Record a call on one rank of a function that takes long, judged by its name and loops."""
    if not _is_of_one_rank(frame.control):
        return
    nodes = list(ast.walk(function.node))
    is_named = _LONG_FUNCTION_NAMES.fullmatch(function.name) is not None
    is_named = is_named and any(isinstance(child, _LOOPS) for child in nodes)
    if is_named or _converts_file(nodes) or _runs_model(function, nodes):
        frame.add_effect(Marker("work", frame.location(node), f"{function.name}()"))


def _runs_model(function: Function, nodes: Sequence[ast.AST]) -> bool:
    """Return True for a loop without gradients that calls what the function or its object has."""
    decorators = getattr(function.node, "decorator_list", [])
    contexts = [
        item.context_expr for node in nodes if isinstance(node, ast.With) for item in node.items
    ]
    if not any(_NO_GRADIENTS.search(ast.unparse(each)) for each in (*decorators, *contexts)):
        return False
    parameters = set(function.parameters)
    return any(
        isinstance(called, ast.Call)
        and isinstance(called.func, ast.Name)
        and called.func.id in parameters
        for loop in nodes
        if isinstance(loop, ast.For) and not _is_short(loop.iter)
        for called in ast.walk(loop)
    )


def _is_short(over: ast.expr) -> bool:
    """Return True for a written sequence, or a range of a written number."""
    is_range = isinstance(over, ast.Call) and ast.unparse(over.func) == "range"
    parts = over.args if isinstance(over, ast.Call) and is_range else [over]
    return all(isinstance(each, (ast.Constant, ast.List, ast.Tuple)) for each in parts)


def _converts_file(nodes: Sequence[ast.AST]) -> bool:
    """Return True for a loop over the lines of an opened file that writes them elsewhere."""
    opened = {
        item.optional_vars.id
        for node in nodes
        if isinstance(node, ast.With)
        for item in node.items
        if isinstance(item.optional_vars, ast.Name) and "open(" in ast.unparse(item.context_expr)
    }
    opened |= {
        node.targets[0].id
        for node in nodes
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and ast.unparse(node.value).startswith("open(")
    }
    return any(
        isinstance(loop, ast.For)
        and (
            ast.unparse(loop.iter).startswith("open(")
            or opened & {each.id for each in ast.walk(loop.iter) if isinstance(each, ast.Name)}
        )
        and any(
            isinstance(each, ast.Attribute) and each.attr.startswith("write")
            for each in ast.walk(loop)
        )
        for loop in nodes
    )


def find_awaited_work(path: Sequence[Effect]) -> Iterator[Divergence]:
    """Yield work on one rank that is followed by a collective of all ranks."""
    walker = _WorkWalker()
    walker.walk(path, None)
    yield from walker.divergences


def _selects_one_rank(branch: Branch) -> bool:
    return _is_of_one_rank(branch.taint) and bool(_ONE_RANK_TEST.search(branch.text))


def _is_of_one_rank(sources: Taint) -> bool:
    """Return True for a test of the rank, and perhaps of files: a cache that does not exist."""
    rest = without_kinds(sources, {TaintKind.FILES})
    return bool(rest) and is_rank_only(rest)


def _waiting_ranks(branch: Branch) -> tuple[Branch, Operation] | None:
    """Return the test and the collective in which one side waits for the other's work."""
    sides = (branch.yes, branch.no)
    first = [next((op for op, _ in iter_operations(side)), None) for side in sides]
    ops = [op for op in first if op is not None and op.kind == "collective"]
    if len(ops) != 1:
        return None
    test = branch.text.removeprefix("if ")
    text = branch.text if first[0] is None else f"if not ({test})"
    return replace(branch, text=text), ops[0]


class _WorkWalker:
    """Walk a path and remember the work of one rank until the next collective."""

    def __init__(self) -> None:
        self.divergences: list[Divergence] = []
        self.work: tuple[SourceLine, Branch, str] | None = None
        self._waiting: tuple[Branch, Operation] | None = None

    def walk(
        self,
        path: Sequence[Effect],
        one_rank_branch: Branch | None,
        outer_call: SourceLine | None = None,
    ) -> None:
        """Walk a path inside or outside of a branch for one rank, entered by ``outer_call``."""
        for effect in path:
            match effect:
                case Marker(name="work", location=location, detail=description):
                    if one_rank_branch is not None and self.work is None:
                        self.work = (outer_call or location, one_rank_branch, description)
                    elif one_rank_branch is None and self._waiting is not None:
                        branch, op = self._waiting
                        self._waiting = None
                        self._record((outer_call or location, branch, description), op)
                case Operation():
                    if one_rank_branch is None:
                        self._waiting = None
                        self._record_collective(effect)
                case FunctionCall(callee=body, location=location):
                    if "work" in body.tags or (self._expects_collective and body.sequence):
                        self.walk(
                            body.path,
                            one_rank_branch,
                            outer_call or (location if one_rank_branch is not None else None),
                        )
                case Branch():
                    self._walk_branch(effect, one_rank_branch, outer_call)
                case _:
                    self._walk_block(effect, one_rank_branch, outer_call)

    def _walk_branch(
        self, branch: Branch, one_rank_branch: Branch | None, outer_call: SourceLine | None
    ) -> None:
        sides = (branch.yes, branch.no)
        if one_rank_branch is None and _selects_one_rank(branch):
            works = ["work" in summarize_path(side).tags for side in sides]
            if works[0] != works[1]:
                one_rank_branch = branch
        before, selects = self._waiting, _selects_one_rank(branch)
        for side in sides:
            self.walk(side, one_rank_branch, outer_call)
        if one_rank_branch is None and selects and before is None:
            self._waiting = _waiting_ranks(branch)

    @property
    def _expects_collective(self) -> bool:
        return self.work is not None or self._waiting is not None

    def _walk_block(
        self, effect: Effect, one_rank_branch: Branch | None, outer_call: SourceLine | None
    ) -> None:
        match effect:
            case LoopEffect(body=first, orelse=second) | Try(body=first, final_body=second):
                self.walk(first, one_rank_branch, outer_call)
                self.walk(second, one_rank_branch, outer_call)
            case _:
                pass

    def _record_collective(self, op: Operation) -> None:
        if self.work is not None and op.kind == "collective" and op.group is GroupScope.WORLD:
            self._record(self.work, op)
        self.work = None

    def _record(self, work: tuple[SourceLine, Branch, str], op: Operation) -> None:
        location, branch, description = work
        if op.name != "monitored_barrier":
            self.divergences.append(
                Divergence(
                    "long",
                    location,
                    branch.location,
                    branch.text,
                    branch.taint,
                    op,
                    (location, op.location),
                    description,
                )
            )
