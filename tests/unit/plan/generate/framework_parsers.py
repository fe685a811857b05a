"""Run the parsers of DeepSpeed and Accelerate: requests on stdin, results on stdout.

The results are on the last line. In a separate process: both take seconds to import, and print and
warn.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

os.environ["DS_ACCELERATOR"] = "cpu"


def deepspeeds(configs):
    """Return the result of DeepSpeed's parser for each (world size, configuration)."""
    from deepspeed.runtime import config as module

    found = []
    for world, text in configs:
        module.dist = SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda world=world: world)
        parsed = module.DeepSpeedConfig(json.loads(text))
        zero = parsed.zero_config
        found.append(
            {
                "batch": [
                    parsed.train_batch_size,
                    parsed.train_micro_batch_size_per_gpu,
                    parsed.gradient_accumulation_steps,
                ],
                "stage": int(zero.stage),
                "clipping": parsed.gradient_clipping,
                "bf16": parsed.bfloat16_config.enabled,
                "fp16": parsed.float16_config.enabled,
                "wire": str(parsed.communication_data_type),
                "optimizer": parsed.optimizer_name,
                "away": [
                    str(getattr(offload, "device", "none").value if offload else "none")
                    if hasattr(getattr(offload, "device", ""), "value")
                    else str(getattr(offload, "device", "none"))
                    for offload in (zero.offload_optimizer, zero.offload_param)
                ],
            }
        )
    return found


def fields():
    """Return every dotted setting in DeepSpeed's models and constants."""
    from deepspeed.runtime import constants
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.zero import config as zero
    from deepspeed.runtime.zero.offload_config import (
        DeepSpeedZeroOffloadOptimizerConfig,
        DeepSpeedZeroOffloadParamConfig,
    )

    blocks = {
        "zero_optimization": zero.DeepSpeedZeroConfig,
        "bf16": DeepSpeedBF16Config,
        "fp16": DeepSpeedFP16Config,
        "zero_optimization.offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig,
        "zero_optimization.offload_param": DeepSpeedZeroOffloadParamConfig,
    }
    found = []
    for block, model in blocks.items():
        for name, field in model.model_fields.items():
            found += [f"{block}.{each}" for each in {name, field.alias or name}]
    named = (
        "TRAIN_BATCH_SIZE",
        "TRAIN_MICRO_BATCH_SIZE_PER_GPU",
        "GRADIENT_ACCUMULATION_STEPS",
        "GRADIENT_CLIPPING",
        "COMMUNICATION_DATA_TYPE",
        "PRESCALE_GRADIENTS",
        "GRADIENT_PREDIVIDE_FACTOR",
        "GRADIENT_ALLREDUCE_OP",
        "DISABLE_ALLGATHER",
        "DUMP_STATE",
        "DISABLE_PYTHON_GC",
        "VOCABULARY_SIZE",
        "WALL_CLOCK_BREAKDOWN",
        "MEMORY_BREAKDOWN",
        "STEPS_PER_PRINT",
        "DATALOADER_DROP_LAST",
        "USE_DATA_BEFORE_EXPERT_PARALLEL",
        "LOG_LEVEL",
        "ZERO_ALLOW_UNTESTED_OPTIMIZER",
        "ZERO_FORCE_DS_CPU_OPTIMIZER",
        "CHECKPOINT",
        "SEQ_PARALLEL_COMMUNICATION_DATA_TYPE",
        "MANAGED_GRADIENT_ACCUMULATION",
    )
    return found + [getattr(constants, name) for name in named if hasattr(constants, name)]


def schedules(requests):
    """Return the learning rates of DeepSpeed's schedules as shares of the highest."""
    import torch
    from deepspeed.runtime import lr_schedules

    found = []
    for kind, values, rate, steps in requests:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
        schedule = getattr(lr_schedules, kind)(optimizer, **values)
        shares = []
        for _ in range(steps):
            shares.append(optimizer.param_groups[0]["lr"] / rate)
            schedule.step()
        found.append(shares)
    return found


def accelerates(requests):
    """Return the result of Accelerate's loader and plugins for each YAML."""
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin
    from accelerate.utils.launch import prepare_multi_gpu_env

    found = []
    for path in requests:
        config = load_config_from_file(path)
        answer = {
            "type": config.distributed_type.value,
            "precision": str(config.mixed_precision),
            "ranks": config.num_processes,
            "hosts": config.num_machines,
            "mesh": config.parallelism_config,
        }
        options = ["--config_file", path]
        if config.num_machines > 1:  # as the purpose of the file says
            options += "--machine_rank 1 --main_process_ip host1 --main_process_port 29500".split()
        arguments = launch_command_parser().parse_args([*options, "train.py"])
        arguments, _, _ = _validate_launch_command(arguments)
        if config.fsdp_config:
            os.environ.update(
                {
                    key: value
                    for key, value in prepare_multi_gpu_env(arguments).items()
                    if key.startswith(("FSDP", "ACCELERATE"))
                }
            )
            plugin = FullyShardedDataParallelPlugin()
            answer |= {
                "reshard": plugin.reshard_after_forward,
                "offload": type(plugin.cpu_offload).__name__,
                "version": plugin.fsdp_version,
                "recompute": plugin.activation_checkpointing,
            }
        if config.deepspeed_config:
            block = config.deepspeed_config
            if "deepspeed_config_file" in block:
                plugin = DeepSpeedPlugin(
                    hf_ds_config=str(Path(path).parent / block["deepspeed_config_file"])
                )
            else:
                of_launcher = {"zero3_save_16bit_model", "deepspeed_multinode_launcher"}
                known = {name: value for name, value in block.items() if name not in of_launcher}
                plugin = DeepSpeedPlugin(**known)
            answer["launcher"] = arguments.deepspeed_multinode_launcher
            answer |= {"stage": plugin.zero_stage, "clipping": plugin.gradient_clipping}
        found.append(answer)
    return found


requests = json.load(sys.stdin)
answers = {name: globals()[name](*values) for name, values in requests.items()}
sys.stdout.write("\n" + json.dumps(answers) + "\n")
