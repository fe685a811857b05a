"""Names that a checkpoint pickle may reference, and how each is treated; none is imported."""

from __future__ import annotations

import re

DTYPE = re.compile(r"(u?int\d+|b?float\d+(_e\d+m\d+\w*)?|bool|complex\d+|q[u]?int\d+)\Z")

#: torch's storage classes and their dtypes.
STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "UntypedStorage": "uint8",
}

#: Libraries whose classes occur in checkpoints; kept opaque and not reported.
LIBRARIES = frozenset(
    """
    accelerate apex argparse builtins collections copyreg datetime deepspeed enum holdfast
    lightning lightning_fabric megatron numpy omegaconf pathlib peft pytorch_lightning safetensors
    torch torchao transformer_engine transformers types typing uuid
    """.split()
)
#: Functions that construct such classes; never executed here.
INERT_CONSTRUCTORS = frozenset(
    """
    copyreg._reconstructor copy_reg._reconstructor builtins.object builtins.bytearray
    builtins.slice builtins.range numpy.ndarray numpy.dtype numpy._core.multiarray._reconstruct
    numpy._core.multiarray.scalar numpy.core.multiarray._reconstruct numpy.core.multiarray.scalar
    datetime.datetime datetime.timedelta datetime.date types.SimpleNamespace
    torch._utils._rebuild_device_tensor_from_numpy torch._utils._rebuild_wrapper_subclass
    torch._tensor._rebuild_from_type_v2 torch._utils._rebuild_qtensor
    torch._utils._rebuild_sparse_tensor torch._utils._rebuild_meta_tensor_no_storage
    torch.random.fork_rng pathlib._local.PosixPath
    deepspeed.utils.tensor_fragment.fragment_address
    """.split()
)
#: Modules with side effects on the host, whatever their classes are called.
SIDE_EFFECT_MODULES = frozenset(
    """
    asyncio bdb code codeop commands concurrent ctypes dill distutils functools gc http importlib
    inspect io ipaddress marshal multiprocessing nt operator os pdb pickle pip pkgutil platform
    posix posixpath profile pty pydoc runpy requests setuptools shutil signal site smtplib socket
    socketserver sqlite3 ssl subprocess sys tarfile tempfile test threading timeit trace urllib
    venv webbrowser wsgiref xmlrpc zipfile zipimport cloudpickle joblib
    """.split()
)


def is_refused(module: str, name: str) -> bool:
    """Return whether the name is a function, or belongs to a module with side effects."""
    top = module.partition(".")[0]
    last = name.rpartition(".")[2]
    if f"{module}.{name}" in INERT_CONSTRUCTORS:
        return False
    return (
        top in SIDE_EFFECT_MODULES
        or ("." in name and top not in LIBRARIES)
        or not last.lstrip("_")[:1].isupper()
    )
