"""Calls that change, read or test files, by the canonical name of a function or a method's name."""

from __future__ import annotations

import re
from typing import NamedTuple


class FileCall(NamedTuple):
    """What a function does, and the position and name of its path.

    ``kind``: makes, writes, reads, lists, tests, removes, moves or downloads. ``tolerance`` is the
    keyword with which it succeeds if another rank was first.
    """

    kind: str
    position: int
    keyword: str
    tolerance: str = ""


FILE_CALLS = {
    "torch.save": FileCall("writes", 1, "f"),
    "torch.load": FileCall("reads", 0, "f"),
    "os.makedirs": FileCall("makes", 0, "name", "exist_ok"),
    "os.mkdir": FileCall("makes", 0, "path"),
    "os.listdir": FileCall("lists", 0, "path"),
    "os.scandir": FileCall("lists", 0, "path"),
    "os.path.exists": FileCall("tests", 0, "path"),
    "os.path.isfile": FileCall("tests", 0, "path"),
    "os.path.isdir": FileCall("tests", 0, "s"),
    "os.path.lexists": FileCall("tests", 0, "path"),
    "os.remove": FileCall("removes", 0, "path"),
    "os.unlink": FileCall("removes", 0, "path"),
    "os.rmdir": FileCall("removes", 0, "path"),
    "os.removedirs": FileCall("removes", 0, "name"),
    "os.rename": FileCall("moves", 0, "src"),
    "os.replace": FileCall("moves", 0, "src"),
    "shutil.rmtree": FileCall("removes", 0, "path", "ignore_errors"),
    "shutil.move": FileCall("moves", 0, "src"),
    "shutil.copy": FileCall("writes", 1, "dst"),
    "shutil.copyfile": FileCall("writes", 1, "dst"),
    "shutil.copytree": FileCall("writes", 1, "dst", "dirs_exist_ok"),
    "shutil.unpack_archive": FileCall("downloads", 1, "extract_dir"),
    "urllib.request.urlretrieve": FileCall("downloads", 1, "filename"),
    "wget.download": FileCall("downloads", 1, "out"),
    "gdown.download": FileCall("downloads", 1, "output"),
    "torchvision.datasets.utils.download_url": FileCall("downloads", 1, "root"),
    "torchvision.datasets.utils.download_and_extract_archive": FileCall(
        "downloads", 1, "download_root"
    ),
    "torchvision.datasets.utils.extract_archive": FileCall("downloads", 1, "to_path"),
    "numpy.save": FileCall("writes", 0, "file"),
    "numpy.savez": FileCall("writes", 0, "file"),
    "numpy.load": FileCall("reads", 0, "file"),
    "numpy.memmap": FileCall("reads", 0, "filename"),
    "safetensors.torch.save_file": FileCall("writes", 1, "filename"),
    "safetensors.torch.load_file": FileCall("reads", 0, "filename"),
    "joblib.dump": FileCall("writes", 1, "filename"),
    "joblib.load": FileCall("reads", 0, "filename"),
    "datasets.load_from_disk": FileCall("reads", 0, "dataset_path"),
    "pandas.read_csv": FileCall("reads", 0, "filepath_or_buffer"),
    "pandas.read_parquet": FileCall("reads", 0, "path"),
    "pandas.read_json": FileCall("reads", 0, "path_or_buf"),
    "h5py.File": FileCall("reads", 0, "name"),
}
#: Methods whose receiver is the path.
PATH_METHODS = {
    "write_text": "writes", "write_bytes": "writes", "read_text": "reads", "read_bytes": "reads",
    "mkdir": "makes", "unlink": "removes", "rmdir": "removes", "exists": "tests",
    "is_file": "tests", "is_dir": "tests", "iterdir": "lists", "glob": "lists", "rglob": "lists",
}  # fmt: skip
#: Names of tests if a path exists.
EXISTENCE_TESTS = frozenset(
    name.rpartition(".")[2]
    for name, kind in (
        *((name, call.kind) for name, call in FILE_CALLS.items()),
        *PATH_METHODS.items(),
    )
    if kind == "tests"
)
#: A function of the program or a library that writes to its second argument, by its name.
DOWNLOAD_NAME = re.compile(r"^(?:maybe_)?(?:download\w*|urlretrieve|get_file|fetch_file)$")
#: Arguments with which a call succeeds if another rank was first.
TOLERANCE = frozenset(
    {"missing_ok", "onerror", *(call.tolerance for call in FILE_CALLS.values())}
) - {""}
