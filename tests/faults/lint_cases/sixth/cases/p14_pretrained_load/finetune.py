import argparse
import os

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint

from modules import PotentialModule, RandomFrames


def model_from_checkpoint(path, lr):
    """Start from the weights and hyperparameters of a finished training run."""
    if not os.path.isfile(path):
        raise FileNotFoundError(f"checkpoint {path} does not exist")
    model = PotentialModule.load_from_checkpoint(path, lr=lr)
    for param in model.species.parameters():
        param.requires_grad_(False)
    return model


def build_model(args):
    if args.from_checkpoint:
        return model_from_checkpoint(args.from_checkpoint, args.lr)
    return PotentialModule(width=args.width, lr=args.lr)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--from-checkpoint", default=None)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--max-epochs", type=int, default=50)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--num-nodes", type=int, default=1)
    parser.add_argument("--output", default="results/finetune")
    parser.add_argument("--seed", type=int, default=123)
    args = parser.parse_args()

    L.seed_everything(args.seed, workers=True)
    model = build_model(args)
    data = RandomFrames(args.batch_size)
    checkpoint = ModelCheckpoint(dirpath=args.output, monitor="val_loss", filename="best", save_last=True)
    trainer = L.Trainer(
        accelerator="gpu",
        strategy="ddp",
        devices=args.devices,
        num_nodes=args.num_nodes,
        max_epochs=args.max_epochs,
        callbacks=[checkpoint],
        gradient_clip_val=1.0,
    )
    trainer.fit(model, datamodule=data)
    if trainer.is_global_zero:
        print(f"best model: {checkpoint.best_model_path} ({checkpoint.best_model_score})")


if __name__ == "__main__":
    main()
