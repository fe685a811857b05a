"""Write checkpoints of any size that use no disk space: their data are holes in sparse files."""

import json
import os

import torch

PARTS = ("self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj", "mlp.down_proj")
SHAPE = (8192, 15360)


def names(layers):
    """Return the weight names; a layer has four of 250 MB."""
    return [f"model.layers.{layer}.{part}.weight" for layer in range(layers) for part in PARTS]


def torch_file(path, layers):
    """Write a torch.save file whose tensors are maps of one sparse file."""
    holes, size = path.with_suffix(".holes"), 2 * SHAPE[0] * SHAPE[1]
    holes.touch()
    os.truncate(holes, size)
    state = {
        name: torch.from_file(
            str(holes), shared=True, size=size // 2, dtype=torch.bfloat16
        ).reshape(SHAPE)
        for name in names(layers)
    }
    with torch.serialization.skip_data():
        torch.save(state, path)
    holes.unlink()
    return path


def safetensors_folder(folder, layers, shards):
    """Write a Hugging Face folder with the given number of shards."""
    folder.mkdir()
    size, files_by_name, all_names = 2 * SHAPE[0] * SHAPE[1], {}, names(layers)
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        shard_names = all_names[shard::shards]
        entries = {
            name: {"dtype": "BF16", "shape": SHAPE, "data_offsets": [at * size, (at + 1) * size]}
            for at, name in enumerate(shard_names)
        }
        header = json.dumps(entries).encode()
        (folder / file).write_bytes(len(header).to_bytes(8, "little") + header)
        os.truncate(folder / file, 8 + len(header) + size * len(shard_names))
        files_by_name |= dict.fromkeys(shard_names, file)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {n: files_by_name[n] for n in all_names}})
    )
    return folder
