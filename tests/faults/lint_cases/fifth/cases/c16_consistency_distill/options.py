import argparse

from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin, ProjectConfiguration


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--latents", required=True)
    parser.add_argument("--output_dir", default="lcm-out")
    parser.add_argument("--train_batch_size", type=int, default=8)
    parser.add_argument("--max_train_steps", type=int, default=20000)
    parser.add_argument("--checkpointing_steps", type=int, default=500)
    parser.add_argument("--checkpoints_total_limit", type=int, default=3)
    parser.add_argument("--num_ddim_timesteps", type=int, default=50)
    parser.add_argument("--ema_decay", type=float, default=0.95)
    parser.add_argument("--learning_rate", type=float, default=1e-6)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def make_accelerator(args):
    plugin = DeepSpeedPlugin(zero_stage=2, gradient_accumulation_steps=1)
    project = ProjectConfiguration(project_dir=args.output_dir)
    return Accelerator(mixed_precision="bf16", deepspeed_plugin=plugin, project_config=project)
