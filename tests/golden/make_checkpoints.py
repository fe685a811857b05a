"""Write the stored checkpoints of real frameworks: ``make golden``.

Each generator's checkpoints go into one archive, ``checkpoints/stored/PROGRAM.tar.xz``, with the
hash of the generator's sources and the versions of the frameworks.
"""

import io
import json
import sys
import tarfile
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.golden.checkpoints.making import archive_of, generate, name_of, source_hash

#: Program, arguments and ranks of every checkpoint that quick tests read; `make matrix` generates
#: the others on demand.
STORED = [
    ("plain_files", "", 1),
    ("torch_distributed", "dcp", 2),
    ("torch_distributed", "dcp --bfloat16 --untied --trained", 2),
    ("torch_distributed", "dcp-ddp", 2),
    ("torch_distributed", "dcp-ddp --untied --trained", 2),
    ("torch_distributed", "dcp-flat", 2),
    ("torch_distributed", "fsdp1-local", 2),
    ("torch_distributed", "fsdp1-local --flat --trained", 2),
    ("torch_distributed", "fsdp1-sharded", 2),
    ("torch_distributed", "fsdp2-ranks", 2),
    ("torch_distributed", "holdfast", 2),
    ("torch_distributed", "holdfast-ddp", 2),
    ("torch_distributed", "huggingface --untied", 2),
    ("torch_distributed", "megatron", 2),
    ("interrupted", "", 1),
    ("lightning_file", "file", 1),
    ("lightning_file", "sharded", 2),
    ("lightning_file", "steady", 1),
    ("accelerate_folder", "ddp", 1),
    ("accelerate_folder", "ddp", 2),
    ("accelerate_folder", "ddp --bin", 2),
    ("accelerate_folder", "ddp --bin --steady", 2),
    ("accelerate_folder", "fsdp2-sharded", 2),
    ("deepspeed_zero", "--stage 1 --clip 0", 2),
    ("deepspeed_zero", "--stage 2 --dtype bf16", 2),
    ("deepspeed_zero", "--stage 2 --dtype fp16 --untied", 2),
    ("deepspeed_zero", "--stage 2 --dtype fp32", 2),
    ("deepspeed_zero", "--stage 2 --universal", 2),
    ("deepspeed_zero", "--stage 3 --clip 0", 2),
    ("deepspeed_zero", "--stage 3 --dtype bf16 --scheduler", 2),
    (
        "deepspeed_zero",
        "--stage 3 --dtype bf16 --sub-group 300 --scheduler --offload",
        3,
    ),
]
FRAMEWORKS = ("torch", "deepspeed", "accelerate", "lightning", "safetensors", "huggingface_hub")


def versions():
    """Return the installed frameworks and their versions."""
    installed = {}
    for name in FRAMEWORKS:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed


def write_archive(program, store):
    """Generate the checkpoints of one program and write its archive."""
    archive = archive_of(program)
    archive.parent.mkdir(exist_ok=True)
    metadata = json.dumps({"sources": source_hash(program), "versions": versions()}).encode()
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        entry = tarfile.TarInfo(f"{program}.json")
        entry.size = len(metadata)
        packed.addfile(entry, io.BytesIO(metadata))
        for each, arguments, ranks in STORED:
            if each == program:
                name = name_of(program, arguments.split(), ranks)
                sys.stdout.write(f"{name}\n")
                generate(store / name, program, *arguments.split(), ranks=ranks)
                packed.add(store / name, name)


def main(*programs):
    """Write the archives of these programs, of all by default."""
    for program in programs or dict.fromkeys(each for each, _, _ in STORED):
        with tempfile.TemporaryDirectory() as store:
            write_archive(program, Path(store))


if __name__ == "__main__":
    main(*sys.argv[1:])
