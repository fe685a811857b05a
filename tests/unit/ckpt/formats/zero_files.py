"""Test helper: small ZeRO checkpoints laid out as by DeepSpeed, without DeepSpeed."""

import torch

SHAPES = ({"embed.weight": (5, 3), "up.weight": (3, 3)}, {"up.bias": (3,), "norm.weight": (1,)})
STEP, WORLD = 3, 2


def numbers(name, shape, key="fp32"):
    """Return values that identify their position."""
    first = 1000 * sum(map(ord, name + key))
    return torch.arange(first, first + torch.Size(shape).numel(), dtype=torch.float32).reshape(
        shape
    )


def write(folder, stage=2, world=WORLD, shapes=SHAPES, mp=0, step=STEP, **more):
    """Write a tag folder; ``more`` is added to the model files."""
    folder.mkdir(parents=True, exist_ok=True)
    frozen = {"frozen": (3, 2)}
    for rank in range(world):
        state = optimizer_state(stage, world, rank, shapes, step)
        torch.save(
            {"optimizer_state_dict": state},
            folder / f"zero_pp_rank_{rank}_mp_rank_{mp:02d}_optim_states.pt",
        )
    for rank in range(world) if stage == 3 else (-1,):
        module = {
            "scale": torch.tensor(3.0),
            **{
                name: torch.empty(0) if stage == 3 else numbers(name, shape).half()
                for group in (*shapes, frozen)
                for name, shape in group.items()
            },
        }
        model = {
            "module": module,
            "buffer_names": ["scale"],
            "param_shapes": [dict(each) for each in shapes],
            "frozen_param_shapes": {name: torch.Size(shape) for name, shape in frozen.items()}
            if stage > 1
            else None,
            "frozen_param_fragments": {
                name: part(numbers(name, shape), world, rank) for name, shape in frozen.items()
            },
            "shared_params": {"head.weight": "embed.weight"},
            "global_steps": step,
            "dp_world_size": world,
            "ds_version": "0.0",
            "ds_config": {"zero_optimization": {"stage": stage}},
            "epoch": 1,
            **more,
        }
        prefix = f"zero_pp_rank_{rank}_" if stage == 3 else ""
        torch.save(model, folder / f"{prefix}mp_rank_{mp:02d}_model_states.pt")
    return folder


def part(tensor, world, rank):
    """Return a rank's shard of a separately sharded tensor."""
    flat = tensor.flatten()
    share = -(-len(flat) // world)
    padded = torch.cat([flat, torch.zeros(share * world - len(flat))])
    return padded[rank * share : (rank + 1) * share].clone()


def optimizer_state(stage, world, rank, shapes, step):
    """Return one rank's optimizer state."""

    def flat(group, key):
        if stage == 3:
            return torch.cat(
                [part(numbers(name, shape, key), world, rank) for name, shape in group.items()]
            )
        whole = torch.cat([numbers(name, shape, key).flatten() for name, shape in group.items()])
        size = -(-len(whole) // (2 * world)) * 2
        kept = whole[rank * size : (rank + 1) * size]
        return kept if key == "fp32" else torch.cat([kept, torch.zeros(size - len(kept))])

    state = {
        at: {
            "step": torch.tensor(float(step)),
            **{key: flat(group, key) for key in ("exp_avg", "exp_avg_sq")},
        }
        for at, group in enumerate(shapes)
    }
    base = {
        "state": state,
        "param_groups": [{"lr": 0.1, "params": [at]} for at in range(len(shapes))],
    }
    weights = [flat(group, "fp32").clone() for group in shapes]
    header = {
        "zero_stage": stage,
        "partition_count": world if stage == 3 else [world] * len(shapes),
    }
    if stage == 3:
        return {**header, "optimizer_state_dict": base, "fp32_flat_groups": weights}
    return {**header, "base_optimizer_state": base, "single_partition_of_fp32_groups": weights}
