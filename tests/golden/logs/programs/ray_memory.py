"""Ray tasks fill the host's memory, and Ray's memory monitor kills the newest."""

import time

import psutil
import ray


@ray.remote(max_retries=0)
def tokenise(part: int) -> int:
    print(f"tokenising part {part}", flush=True)
    texts = []
    for _ in range(60):
        texts.append(b"x" * (50 << 20))
        time.sleep(0.2)
    return len(texts)


used = psutil.virtual_memory()
threshold = (used.total - used.available + (1500 << 20)) / used.total
ray.init(
    num_cpus=1,
    include_dashboard=False,
    _system_config={"memory_usage_threshold": threshold, "memory_monitor_refresh_ms": 200},
)
print(f"{ray.get(tokenise.remote(0))} texts", flush=True)
