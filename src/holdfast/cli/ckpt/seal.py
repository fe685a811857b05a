"""``holdfast ckpt seal``: write a manifest, so that ``verify`` finds every later change."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--overwrite", is_flag=True, help="Replace an existing manifest.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout.")
def command(*, path: Path, overwrite: bool, as_json: bool) -> int:
    """Write a manifest with the hash of every file of checkpoint PATH.

    `ckpt verify` then finds every changed byte, also in formats without checksums (safetensors).
    The manifest is manifest.json in a folder, and NAME.manifest.json beside a file. Seal a
    checkpoint right after it was saved; the callbacks for Lightning and transformers do so.

    Exit status: 0 sealed, 2 PATH is not a complete checkpoint, or has a manifest.
    """
    from holdfast.ckpt.seal import seal_checkpoint
    from holdfast.cli.progress import ElapsedProgress

    with ElapsedProgress(sys.stderr, f"hashing {path.name}"):
        sealed = seal_checkpoint(path, overwrite=overwrite)
    if as_json:
        from holdfast.report.json import envelope, write_json

        write_json(sys.stdout, envelope("ckpt seal", (), None, sealed=sealed))
    else:
        from holdfast.core.text import pluralize
        from holdfast.report.evidence_summary import size_text

        click.echo(
            f"{sealed.path}: {pluralize(sealed.files, 'file')}, {size_text(sealed.size)}, "
            f"in {sealed.elapsed_s:.1f} s"
        )
    return 0
