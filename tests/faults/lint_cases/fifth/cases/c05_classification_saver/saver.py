import csv
import os


class CSVSaver:
    """Collects one row a case and writes the table when it is finalized."""

    def __init__(self, output_dir, filename="predictions.csv"):
        self.output_dir = output_dir
        self.filename = filename
        self.rows = {}

    def save_batch(self, names, outputs):
        for name, out in zip(names, outputs):
            self.rows[name] = [f"{v:.5f}" for v in out.tolist()]

    def finalize(self):
        os.makedirs(self.output_dir, exist_ok=True)
        path = os.path.join(self.output_dir, self.filename)
        with open(path, "w", newline="") as fp:
            writer = csv.writer(fp)
            for name in sorted(self.rows):
                writer.writerow([name, *self.rows[name]])
        self.rows.clear()


class ClassificationSaver:
    """Engine handler: saves the outputs of every iteration."""

    def __init__(self, output_dir):
        self.saver = CSVSaver(output_dir)

    def attach(self, engine):
        engine.on("iteration_completed", self)
        engine.on("epoch_completed", self.finalize)

    def __call__(self, engine):
        self.saver.save_batch(engine.state["names"], engine.state["output"])

    def finalize(self, engine):
        self.saver.finalize()
