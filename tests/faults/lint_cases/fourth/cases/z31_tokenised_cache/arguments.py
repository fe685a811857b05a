from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path


@dataclass
class DataArguments:
    corpus: Path = Path("/data/belle/train_0.43M.jsonl")
    cache: Path = Path("/data/cache/qwen_sft.pt")
    cutoff: int = 1024


@dataclass
class TrainArguments:
    model: str = "Qwen/Qwen-7B"
    batch_size: int = 2
    lr: float = 1e-5
    epochs: int = 1
    timeout: timedelta = field(default_factory=lambda: timedelta(minutes=10))
