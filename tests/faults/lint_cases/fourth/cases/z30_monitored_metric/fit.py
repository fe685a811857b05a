import argparse

from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from lit_protein import LitStructure, ProteinData


def callbacks(folder):
    checkpoint = ModelCheckpoint(
        dirpath=folder,
        filename="{epoch}-{val/lddt:.3f}",
        auto_insert_metric_name=False,
        monitor="val/lddt",
        mode="max",
        save_top_k=3,
    )
    return [checkpoint, LearningRateMonitor("step")]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="proteins.pt")
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--nodes", type=int, default=2)
    args = parser.parse_args()
    seed_everything(7, workers=True)
    trainer = Trainer(
        devices=args.devices,
        num_nodes=args.nodes,
        strategy="ddp",
        max_epochs=100,
        callbacks=callbacks("ckpts"),
        logger=CSVLogger("logs"),
    )
    trainer.fit(LitStructure(), datamodule=ProteinData(args.data))


if __name__ == "__main__":
    main()
