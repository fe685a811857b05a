import argparse
import datetime as dt
from dataclasses import dataclass
from pathlib import Path


@dataclass
class TrainPipelineConfig:
    dataset: str
    job_name: str = ""
    output_dir: Path = None
    steps: int = 20000
    save_freq: int = 1000
    batch_size: int = 8
    lr: float = 5e-5

    def validate(self):
        if not self.job_name:
            self.job_name = Path(self.dataset).stem
        if self.output_dir is None:
            now = dt.datetime.now()
            self.output_dir = Path("outputs/train") / f"{now:%Y-%m-%d}/{now:%H-%M-%S}_{self.job_name}"
        if self.save_freq <= 0:
            raise ValueError("save_freq must be positive")

    @property
    def checkpoint_dir(self):
        return Path(self.output_dir) / "checkpoints"


def parse_config():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--job-name", default="")
    parser.add_argument("--output-dir", type=Path, default=None)
    parser.add_argument("--steps", type=int, default=20000)
    parser.add_argument("--local_rank", type=int, default=-1)
    opt = parser.parse_args()
    cfg = TrainPipelineConfig(opt.dataset, opt.job_name, opt.output_dir, opt.steps)
    cfg.validate()
    return cfg
