"""Train with checkpoint copies in an invalid folder until FOLDER/enough exists."""

import sys
import time
from pathlib import Path

import torch

import holdfast

folder = Path(sys.argv[1])
(folder / "copies").touch()
model = torch.nn.Linear(4, 4)
checkpoint = holdfast.Checkpoint(
    folder / "checkpoints", model=model, copies=[folder / "copies"], every_steps=1
)
hooks = holdfast.Hooks(checkpoint)
hooks.resume()
while hooks.step < 2 or not (folder / "enough").exists():
    hooks.begin()
    hooks.end()
    time.sleep(0.2)
