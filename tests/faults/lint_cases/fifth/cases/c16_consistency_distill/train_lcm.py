import logging
import os
import shutil

import torch
import torch.nn.functional as F
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

from networks import build, ddim_step, update_ema
from options import make_accelerator, parse_args

logger = logging.getLogger(__name__)


def prune_checkpoints(args):
    names = [d for d in os.listdir(args.output_dir) if d.startswith("checkpoint-")]
    names.sort(key=lambda d: int(d.split("-")[1]))
    for name in names[: max(0, len(names) - args.checkpoints_total_limit + 1)]:
        shutil.rmtree(os.path.join(args.output_dir, name))


def main():
    args = parse_args()
    accelerator = make_accelerator(args)
    set_seed(args.seed, device_specific=True)
    if accelerator.is_main_process:
        os.makedirs(args.output_dir, exist_ok=True)
    accelerator.wait_for_everyone()

    teacher, student, target = build(args)
    optimizer = torch.optim.AdamW(student.parameters(), lr=args.learning_rate)
    data = TensorDataset(torch.load(args.latents))
    loader = DataLoader(data, args.train_batch_size, shuffle=True, drop_last=True)
    student, optimizer, loader = accelerator.prepare(student, optimizer, loader)
    teacher.to(accelerator.device)
    target.to(accelerator.device)

    alphas = torch.linspace(0.999, 0.01, args.num_ddim_timesteps + 1, device=accelerator.device)
    global_step = 0
    while global_step < args.max_train_steps:
        for (latents,) in loader:
            index = torch.randint(1, args.num_ddim_timesteps + 1, (latents.shape[0],), device=latents.device)
            now, nxt = alphas[index], alphas[index - 1]
            noise = torch.randn_like(latents)
            level = now[:, None, None, None]
            noisy = level.sqrt() * latents + (1 - level).sqrt() * noise
            pred = student(noisy, index).sample
            with torch.no_grad():
                previous = ddim_step(noisy, teacher(noisy, index).sample, now, nxt)
                wanted = target(previous, index - 1).sample
            loss = F.huber_loss(pred.float(), wanted.float(), delta=0.001)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

            update_ema(target.parameters(), accelerator.unwrap_model(student).parameters(), args.ema_decay)
            global_step += 1
            if accelerator.is_main_process:
                if global_step % args.checkpointing_steps == 0:
                    prune_checkpoints(args)
                    save_path = os.path.join(args.output_dir, f"checkpoint-{global_step}")
                    accelerator.save_state(save_path)
                    logger.info("saved state to %s", save_path)
            if global_step >= args.max_train_steps:
                break

    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        target.save_pretrained(os.path.join(args.output_dir, "unet_target"))
    accelerator.end_training()


if __name__ == "__main__":
    main()
