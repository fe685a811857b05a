"""Start ``holdfast run`` on each node of a Ray cluster: ``python train_with_ray.py SCRIPT [ARGS]``.

Ray Train starts one process per GPU itself. Here it starts one launcher per node instead, so that
hangs and failures of the ranks are diagnosed and recovered by holdfast, and lost nodes by Ray.
"""

import socket
import subprocess
import sys

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

NODES, GPUS, CPUS, PORT = 2, 8, 32, 29500
ATTEMPTS = 3


@ray.remote
class Node:
    """One node of the job."""

    def address(self) -> str:
        """Return this node's address."""
        return ray.util.get_node_ip_address()

    def check(self) -> int:
        """Return the exit status of the health gate."""
        return subprocess.call(["holdfast", "check", "--nproc-per-node", str(GPUS)])

    def run(self, endpoint: str, attempt: int, words: list[str]) -> int:
        """Run the launcher; return its exit status."""
        print(f"{socket.gethostname()}: attempt {attempt}", flush=True)
        rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint]
        size = ["--nnodes", str(NODES), "--nproc-per-node", str(GPUS)]
        identity = ["--rdzv-id", f"ray.{attempt}", "--max-restarts", "3"]
        return subprocess.call(["holdfast", "run", *size, *rendezvous, *identity, *words])


def attempt_job(attempt: int, words: list[str]) -> int:
    """Place one launcher per node, check the nodes and run the job; return its exit status."""
    group = placement_group([{"CPU": CPUS, "GPU": GPUS}] * NODES, strategy="STRICT_SPREAD")
    ray.get(group.ready())
    try:
        nodes = [
            Node.options(
                num_cpus=CPUS,
                num_gpus=GPUS,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, index),
            ).remote()
            for index in range(NODES)
        ]
        if any(ray.get([node.check.remote() for node in nodes])):
            return 1
        endpoint = f"{ray.get(nodes[0].address.remote())}:{PORT}"
        return max(ray.get([node.run.remote(endpoint, attempt, words) for node in nodes]))
    except ray.exceptions.RayActorError as lost:
        print(f"a node was lost: {lost}", flush=True)
        return 1
    finally:
        ray.util.remove_placement_group(group)


if __name__ == "__main__":
    ray.init(address="auto")
    status = 1
    for number in range(ATTEMPTS):
        status = attempt_job(number, sys.argv[1:])
        if status in (0, 93):  # 93: another start would not help
            break
    sys.exit(status)
