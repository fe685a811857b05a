import argparse
import os
from dataclasses import dataclass, field


@dataclass
class BenchArgs:
    data_folder: str = "data/unet3d"
    batch_size: int = 4
    epochs: int = 3
    computation_time: float = 0.3
    my_rank: int = 0
    comm_size: int = 1
    file_list: list = field(default_factory=list)

    def discover(self):
        names = sorted(os.listdir(os.path.join(self.data_folder, "train")))
        self.file_list = [os.path.join(self.data_folder, "train", n) for n in names if n.endswith(".npz")]

    @property
    def files_of_rank(self):
        return self.file_list[self.my_rank::self.comm_size]


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-folder", default="data/unet3d")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=3)
    opt = parser.parse_args()
    return BenchArgs(data_folder=opt.data_folder, batch_size=opt.batch_size, epochs=opt.epochs)
