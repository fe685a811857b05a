"""Files that end too early: an exception names the damage, its frames the kind of file."""

from __future__ import annotations

import re
from collections.abc import Iterable

from holdfast.causes.checkpoint.checkpoint_corrupt import CHECKPOINT_CORRUPT
from holdfast.causes.data.model_download_race import MODEL_DOWNLOAD_RACE
from holdfast.diagnose.log_rules.candidates import CauseCandidate
from holdfast.diagnose.log_rules.exceptions import uncaught_tracebacks
from holdfast.diagnose.log_rules.log_index import LogIndex
from holdfast.diagnose.log_rules.signal_causes import Tier
from holdfast.diagnose.logs import LoggedTraceback

#: What an empty or truncated file looks like to its reader.
_DAMAGE = re.compile(
    r"JSONDecodeError: (?:Expecting value: line 1 column 1 |Unterminated string|Extra data)"
    r"|BadZipFile: |EOFError: (?:Ran out of input|No data left|Compressed file ended)"
    r"|zlib\.error: |(?:Bad)?GzipFile: |ArrowInvalid: .{0,80}(?:too small|not an Arrow|truncated)"
)
#: Files that libraries download once, and that the ranks of a host share.
_CACHE = re.compile(
    r"(?:transformers|diffusers|tokenizers|huggingface_hub|datasets|timm|torchvision|modelscope"
    r"|sentence_transformers|open_clip)/[\w/]*\.py$|torch/hub\.py$"
)
_CHECKPOINT = re.compile(r"checkpoint|ckpt|resume|restore|load_state|trainer_state|\bdcp\b")
_TRAINER_STATE = re.compile(r"trainer(?:_callback|_pt_utils)?\.py$")


def find_damaged_files(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield a damaged checkpoint, or a cache that another rank was writing."""
    for one in uncaught_tracebacks(index):
        if not _DAMAGE.search(f"{one.type}: {one.text}"):
            continue
        if _names(one, _CHECKPOINT) or any(_TRAINER_STATE.search(f.file) for f in one.frames):
            cause, message = CHECKPOINT_CORRUPT.name, "a file of the checkpoint is damaged"
        elif any(_CACHE.search(frame.file) for frame in one.frames):
            cause, message = MODEL_DOWNLOAD_RACE.name, "a file of the shared cache is incomplete"
        else:
            continue
        rank = one.line.rank
        yield CauseCandidate(cause, Tier.DEVICE, 0.65, message, (one.line,), rank, place=one.place)
        return


def find_file_in_download(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield a damaged file that a rank read while another was still downloading."""
    bars = [one.line for one in index.all("reading-bar")]
    for damaged in index.unrecovered("checkpoint-broken"):
        around = [one for one in bars if one.source == damaged.line.source]
        numbers = [one.number for one in around]
        if around and min(numbers) < damaged.line.number < max(numbers):
            message = "a rank read a file while another rank was still downloading it"
            lines = (damaged.line, around[-1])
            yield CauseCandidate(MODEL_DOWNLOAD_RACE.name, Tier.NAMED, 0.85, message, lines)
            return


def _names(one: LoggedTraceback, words: re.Pattern[str]) -> bool:
    frames = (f"{frame.file.rpartition('/')[2]} {frame.function}" for frame in one.frames)
    return any(words.search(frame) for frame in frames)
