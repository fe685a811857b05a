import argparse
import datetime as dt
from dataclasses import dataclass
from pathlib import Path
from typing import Optional


@dataclass
class TrainPipelineConfig:
    job_name: str = "vla"
    output_dir: Optional[Path] = None
    resume_from: Optional[Path] = None
    steps: int = 20_000
    save_freq: int = 1_000
    log_freq: int = 50
    batch_size: int = 16
    seed: int = 1000

    def validate(self):
        if self.save_freq <= 0 or self.steps <= 0:
            raise ValueError("steps and save_freq have to be positive")
        if self.output_dir is None:
            now = dt.datetime.now()
            self.output_dir = Path("outputs/train") / f"{now:%Y-%m-%d}" / f"{now:%H-%M-%S}_{self.job_name}"


def from_cli():
    parser = argparse.ArgumentParser()
    parser.add_argument("--job-name", default="vla")
    parser.add_argument("--output-dir", type=Path)
    parser.add_argument("--resume-from", type=Path)
    cfg = TrainPipelineConfig(**vars(parser.parse_args()))
    cfg.validate()
    return cfg
