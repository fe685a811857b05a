"""Provide C++ extensions for the installed torch: from the cache, from the wheel, or compiled.

An extension is used only after it passed its self-test with the installed torch; it is then stored
in the cache folder, so all of this occurs once per torch release. Compiling needs a C++ compiler,
Python's headers and the headers included in every torch wheel.
"""

from __future__ import annotations

import shutil
import sysconfig
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from holdfast.core import native_extension

#: The extensions that the wheel contains; see release/wheel.py.
PREBUILT = Path(__file__).parent / "prebuilt"
#: A failed compilation is repeated after this time: it may have run out of memory or disk space, or
#: gloo may not have worked.
RETRY_AFTER_S = 24 * 3600.0

Progress = Callable[[str], None]


@dataclass(frozen=True)
class TorchExtension:
    """An extension; ``title`` names it in messages, ``fallback`` what happens without it.

    ``self_test`` returns why a compiled library does not work. It raises OSError if that cannot be
    tested now.
    """

    name: str
    title: str
    fallback: str
    source: Path
    self_test: Callable[[Path], str | None]
    libraries: tuple[str, ...] = ()

    @property
    def cached(self) -> Path:
        """Return its path in the cache; it depends on sources, torch and Python version."""
        return native_extension.extension_path(
            self.name, self.source.parent.iterdir(), f"torch{torch.__version__}", _python_abi()
        )

    @property
    def prebuilt(self) -> Path:
        """Return its path in the wheel, which has one for all patch releases of a torch."""
        major, minor = torch_release()
        torch_abi = f"torch{major}.{minor}-abi{int(torch.compiled_with_cxx11_abi())}"
        sources = native_extension.source_hash(self.source.parent.iterdir())
        return PREBUILT / f"{self.name}-{torch_abi}-{_python_abi()}-{sources}.so"

    @property
    def refusal(self) -> str | None:
        """Return why there is none and none should be compiled; None otherwise."""
        refused, failed = self._refused, self._failed
        with suppress(OSError):
            return f"{refused.read_text(encoding='utf-8')} (delete {refused} to retry)"
        with suppress(OSError):
            if time.time() - failed.stat().st_mtime < RETRY_AFTER_S:
                return f"{failed.read_text(encoding='utf-8')} (delete {failed} to retry)"
        return None

    @property
    def _refused(self) -> Path:
        """Return the file that stores why the self-test failed."""
        return self.cached.with_suffix(".refused")

    @property
    def _failed(self) -> Path:
        """Return the file that stores why it could not be compiled, or not be tested."""
        return self.cached.with_suffix(".failed")

    def find(self, progress: Progress) -> Path | None:
        """Return the extension from the cache or the wheel, None if it has to be compiled."""
        target, prebuilt = self.cached, self.prebuilt
        if target.is_file():  # stored only after it passed the self-test
            return target
        refused = target.with_suffix(".prebuilt-refused")
        if not prebuilt.is_file() or refused.exists() or self.refusal is not None:
            return None
        try:
            why = self.self_test(prebuilt)
        except OSError as error:
            progress(f"cannot test the prebuilt {self.title} ({error})")
            return None
        if why is None:
            return self._store(prebuilt, target) or prebuilt
        progress(f"the prebuilt {self.title} fails its self-test ({why})")
        with suppress(OSError):
            refused.write_text(why, encoding="utf-8")
        return None

    def ensure_built(self, progress: Progress) -> Path | None:
        """Return the extension, compiling it if needed; None on failure.

        The reason goes to ``progress``.
        """
        library = self.find(progress)
        if library is not None:
            return library
        why = self.refusal
        if why is None:
            if native_extension.find_compiler() is not None:
                progress(f"Compiling the {self.title} for torch {torch.__version__} (one-time) …")
            try:
                why = self._build()
            except OSError as error:
                why = f"cannot compile and test the {self.title} ({error})"
                with suppress(OSError):
                    self._failed.write_text(why, encoding="utf-8")
        if why is None:
            return self.cached
        progress(f"{why}; {self.fallback}")
        return None

    def _build(self) -> str | None:
        """Compile, test and store the extension; return the reason of a failure."""
        target = self.cached
        with native_extension.build_folder(target) as folder:
            if target.is_file() or self.refusal:  # another process has just compiled it
                return self.refusal
            errors: list[str] = []
            built = self.compile_to(folder / target.name, errors.append)
            if built is None:
                if native_extension.find_compiler() is not None:
                    self._failed.write_text(errors[0], encoding="utf-8")
                return errors[0]
            why = self.self_test(built)
            if why is None:
                built.replace(target)
                return None
        subject = f"the compiled {self.title} fails its self-test with torch {torch.__version__}"
        self._refused.write_text(f"{subject} ({why})", encoding="utf-8")
        return self.refusal

    @staticmethod
    def _store(library: Path, target: Path) -> Path | None:
        """Copy the library to the cache; return None if it is not writable."""
        try:
            with native_extension.build_folder(target, timeout_s=0) as folder:
                shutil.copyfile(library, folder / target.name)
                return (folder / target.name).replace(target)
        except OSError:
            return None

    def compile_to(self, target: Path, progress: Progress) -> Path | None:
        """Compile to ``target``; on failure report to ``progress`` and return None."""
        arguments = compiler_arguments(self.source, *self.libraries)
        return native_extension.build_extension(target, arguments, progress)


def compiler_arguments(source: Path, *libraries: str) -> list[str]:
    """Return the compiler arguments for the imported torch, linked with ``libraries``."""
    home = Path(torch.__file__).parent
    standard = "c++20" if torch_release() >= (2, 10) else "c++17"
    abi = int(torch.compiled_with_cxx11_abi())
    return [
        f"-std={standard}",
        "-w",
        f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
        f"-I{home / 'include'}",
        f"-I{home / 'include/torch/csrc/api/include'}",
        f"-I{sysconfig.get_paths()['include']}",
        str(source),
        f"-L{home / 'lib'}",
        "-lc10",
        "-ltorch_cpu",
        *(f"-l{library}" for library in libraries),
    ]


def torch_release() -> tuple[int, int]:
    """Return torch's major and minor version."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int("".join(digit for digit in minor if digit.isdigit()) or 0)


def _python_abi() -> str:
    return str(sysconfig.get_config_var("SOABI"))
