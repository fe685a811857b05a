import json
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Task:
    name: str
    documents: list

    @classmethod
    def load(cls, root, name):
        with (Path(root) / f"{name}.jsonl").open() as lines:
            return cls(name, [json.loads(line) for line in lines])

    def shard(self, rank, world_size):
        return self.documents[rank::world_size]

    def score(self, answer, document):
        return float(answer.strip().lower() == document["answer"].strip().lower())
