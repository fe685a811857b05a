"""Work of one rank that the others wait for: downloads, other programs, whole data sets, before the next collective."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from holdfast.facts.code.arguments import LibraryCall
from holdfast.facts.code.effects import (
    Called,
    Effect,
    Fork,
    Group,
    Loop,
    Note,
    Op,
    Place,
    Try,
    body_of,
    ends,
    operations,
)
from holdfast.facts.code.frames import Frame
from holdfast.facts.code.modules import Function
from holdfast.facts.code.partings import Parting
from holdfast.facts.code.raising import catches
from holdfast.facts.code.values import by_rank

#: Calls of libraries that take as long as a network, a disk or another program takes.
_LONG = frozenset({
    "subprocess.run", "subprocess.call", "subprocess.check_call", "os.system",
    "urllib.request.urlretrieve", "wget.download", "gdown.download", "nltk.download", "datasets.load_dataset",
    "huggingface_hub.snapshot_download", "huggingface_hub.hf_hub_download", "torch.hub.download_url_to_file",
    "torch.hub.load_state_dict_from_url", "shutil.copytree", "shutil.unpack_archive", "shutil.make_archive",
    "torchvision.datasets.utils.download_and_extract_archive",
})  # fmt: skip
#: A sleep of so many seconds is work: half of the shortest default limit.
_SLEEP_S = 300
#: The program's own functions of these names go over all data, where there is a loop in them.
_NAMES = re.compile(
    r"_?(?:(?:download|pre_?process|tokeni[sz]e)(?:_\w+)?|(?:run_|do_)?(?:evaluate|validate|evaluation|validation)"
    r"|(?:prepare|build|make|create)_(?:data|datasets?|corpus|index|indices|cache|vocab))",
    re.IGNORECASE,
)
_LOOPS = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp, ast.DictComp)
#: A test that asks for one rank says so: what is by the rank for other reasons is not believed here.
_ONE_RANK = re.compile(r"rank|main|master|zero|first|chief|primary|leader", re.IGNORECASE)
#: A program whose output is read answers a question.
_ASKED = frozenset({"capture_output", "stdout", "timeout"})
#: Besides work, what may fail on the rank that does it.
MAY_FAIL = frozenset({"work", "read", "write"})


def note_work(call: LibraryCall) -> None:
    """Note a call of a library that takes long, and has no limit of its own."""
    given = call.given
    seconds = given.get(0, "secs") if call.name == "time.sleep" else None
    slept = seconds is not None and isinstance(seconds.const, (int, float)) and seconds.const >= _SLEEP_S
    mapped = call.name == "map" and bool({"num_proc", "batched"} & given.named.keys())
    if slept or mapped or (call.name in _LONG and not _ASKED & given.named.keys()):
        call.frame.note(Note("work", call.place, "time.sleep()" if slept else f"{call.name}()"))


def note_own_work(frame: Frame, node: ast.expr, function: Function) -> None:
    """Note a call of the program's own function, on one rank alone, that by its name and its loops takes long."""
    alone = frame.control and by_rank(frame.control) and _NAMES.fullmatch(function.name)
    if alone and any(isinstance(each, _LOOPS) for each in ast.walk(function.node)):
        frame.note(Note("work", frame.place(node), f"{function.name}()"))


def awaited(way: Sequence[Effect]) -> Iterator[Parting]:
    """Work on one rank, and behind it a collective of all."""
    walk = _Walk()
    walk.through(way, None)
    yield from walk.found


def _for_one(fork: Fork) -> bool:
    return bool(fork.test) and by_rank(fork.test) and bool(_ONE_RANK.search(fork.text))


class _Walk:
    """Goes along a way, and keeps the work of one rank until all meet."""

    def __init__(self) -> None:
        self.found: list[Parting] = []
        self.work: tuple[Place, Fork, str] | None = None

    def through(self, way: Sequence[Effect], apart: Fork | None, at: Place | None = None) -> None:
        """``apart`` is the test that only one rank passes here, ``at`` the call in its branch."""
        for effect in way:
            match effect:
                case Note(name="work", place=place, about=about):
                    if apart is not None and self.work is None:
                        self.work = (at or place, apart, about)
                case Op():
                    if apart is None:
                        self._meet(effect)
                case Called(within=body, place=place):
                    if "work" in body.marks or (self.work is not None and body.whole):
                        self.through(body.way, apart, at or (place if apart is not None else None))
                case Fork():
                    self._fork(effect, apart, at)
                case _:
                    self._block(effect, apart, at)

    def _fork(self, fork: Fork, apart: Fork | None, at: Place | None) -> None:
        sides = (fork.yes, fork.no)
        if apart is None and _for_one(fork):
            works = ["work" in body_of(side).marks for side in sides]
            if works[0] != works[1]:
                apart = fork
        for side in sides:
            self.through(side, apart, at)

    def _block(self, effect: Effect, apart: Fork | None, at: Place | None) -> None:
        match effect:
            case Loop(body=body, after=after):
                self.through(body, apart, at)
                self.through(after, apart, at)
            case Try(body=body, last=last):
                self.through(body, apart, at)
                self.through(last, apart, at)
            case _:
                pass

    def _meet(self, op: Op) -> None:
        if self.work is not None and op.kind == "collective" and op.group is Group.WORLD:
            place, fork, about = self.work
            if op.name != "monitored_barrier":
                self.found.append(
                    Parting("long", place, fork.place, fork.text, fork.test, op, (place, op.place), about)
                )
        self.work = None


def unguarded(way: Sequence[Effect]) -> Iterator[Parting]:
    """Work of one rank that may fail in a guarded block, and in the block behind it a collective of all.

    The rank where it fails goes on in the handler, and leaves the collective out.
    """
    for effect in way:
        match effect:
            case Try(body=body, last=last):
                yield from _may_leave_out(effect)
                yield from unguarded((*body, *last))
            case Fork(yes=one, no=other) | Loop(body=one, after=other):
                yield from unguarded((*one, *other))
            case _:
                pass


def _may_leave_out(block: Try) -> Iterator[Parting]:
    for _, what, handled in block.handlers:
        end = ends(handled)
        goes_on = end is None or end.how != "raise"
        if not goes_on or not catches(what, "Exception") or next(operations(handled), None) is not None:
            continue
        for at, effect in enumerate(block.body):
            side = _failing(effect) if isinstance(effect, Fork) else None
            found = next(operations(block.body[at + 1 :]), None) if side is not None else None
            if side is not None and found is not None:
                op, chain = found
                place = next((each.place for each in side if isinstance(each, (Note, Called))), effect.place)
                yield Parting("swallowed", place, effect.place, f"except {what}".strip(), (), op, (place, *chain))
                return


def _failing(fork: Fork) -> Sequence[Effect] | None:
    """The side of a test of the rank where something may fail and the others do nothing."""
    sides = [side for side in (fork.yes, fork.no) if body_of(side).marks & MAY_FAIL]
    if not _for_one(fork) or len(sides) != 1:
        return None
    return sides[0] if ends(sides[0]) is None and next(operations(sides[0]), None) is None else None
