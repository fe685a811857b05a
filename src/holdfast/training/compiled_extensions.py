"""Provide the compiled recorder and packing to a job without delaying its start.

What passed its self-test earlier is used. The recorder of the wheel is tested first (2 s). What has
to be compiled is compiled by a detached process at the lowest priority (``python -m`` this module),
and used by later starts.
"""

from __future__ import annotations

from pathlib import Path

import torch

from holdfast.core import native_extension, settings
from holdfast.recorder import build
from holdfast.recorder.torch_extension import Progress, TorchExtension, torch_release
from holdfast.training import packing_extension


def prepare_extensions(recorder: str, progress: Progress, *, faults: bool = False) -> Path | None:
    """Return the compiled recorder for a job in the mode ``recorder``; None if Python is to record.

    ``native`` waits for the compiler, ``auto`` does not; other modes need no recorder. ``progress``
    receives the reason of None. ``faults``: whether the recorder is to inject faults.
    """
    if faults and torch_release() < (2, 9):  # both would be kernels of the same key
        return None
    if recorder == "native":
        library = build.ensure_built(progress)
        if library is not None:
            packing_extension.ensure_built(progress)
        return library
    return _find_or_compile_later(progress) if recorder == "auto" else None


def _find_or_compile_later(progress: Progress) -> Path | None:
    extension, packing = build.recorder_extension(), packing_extension.packing()
    library = extension.find(progress)
    if library is not None and packing.cached.is_file():
        return library
    missing = extension if library is None else packing
    why = _obstacle(missing)
    if why is None:
        why = f"compiling the {missing.title} for torch {torch.__version__} in the background"
        if not _is_being_built():
            native_extension.start_in_background(__spec__.name)
    if library is None:
        progress(f"{why}; {extension.fallback}")
    return library


def _is_being_built() -> bool:
    """Return whether another start compiles either extension now."""
    extensions = (build.recorder_extension(), packing_extension.packing())
    return any(native_extension.is_being_built(extension.cached) for extension in extensions)


def _obstacle(extension: TorchExtension) -> str | None:
    """Return why it cannot be compiled in the background; None if it can."""
    if extension.refusal is not None:
        return extension.refusal
    if not native_extension.is_writable(settings.cache_folder()):
        return f"cannot write to {settings.cache_folder()}: set HOLDFAST_CACHE to a writable folder"
    if native_extension.find_compiler() is None and not extension.prebuilt.is_file():
        return f"no C++ compiler: install g++ and Python's headers to get the {extension.title}"
    return None


def main() -> None:
    """Compile both, at the lowest priority; failures are stored for the next start."""
    native_extension.yield_to_jobs()
    if _is_being_built():
        return
    if build.ensure_built(_ignore) is not None:
        packing_extension.ensure_built(_ignore)


def _ignore(text: str) -> None:
    """Discard a message: the next start reads the stored reason."""


if __name__ == "__main__":
    main()
