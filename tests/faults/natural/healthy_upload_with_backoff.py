"""Healthy: rank 0 uploads a checkpoint, the server is unavailable twice, and the client waits 10 s before each retry."""
# case: processes=3 ending=well framework=ddp

import http.server
import threading
import time

import requests
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Bucket(http.server.BaseHTTPRequestHandler):
    """An object store that answers 503 to the first two uploads."""

    requests = 0

    def do_PUT(self):
        Bucket.requests += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(503 if Bucket.requests <= 2 else 200)
        self.end_headers()

    def log_message(self, *args):
        pass


def start_bucket():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def upload(url, data, attempts=5, wait_s=10):
    session = requests.Session()
    session.trust_env = False
    for attempt in range(attempts):
        response = session.put(f"{url}/model.bin", data=data, timeout=30)
        if response.ok:
            return
        print(f"upload failed with {response.status_code}, retrying in {wait_s} s", flush=True)
        time.sleep(wait_s)
    raise RuntimeError("upload failed")


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    url = start_bucket() if rank == 0 else None
    model = DDP(nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(60):
        loss = model(torch.randn(8, 32)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 30 and rank == 0:
            upload(url, model.module.weight.detach().numpy().tobytes())
    if rank == 0:
        print(f"loss {loss.item():.4f}")
    del model  # before its group (PROC013)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
