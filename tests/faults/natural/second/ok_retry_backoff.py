"""Healthy: rank 2's data server answers 503 several times; the client retries with a growing pause and then goes on.

In the style of Accelerate's no_trainer examples; the others wait for rank 2 in the gradient all-reduce for about 15 s.
"""
# case: processes=4 ending=well causes=- ranks=- framework=accelerate limit_s=90

import json
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import torch
from accelerate import Accelerator
from torch import nn

FAILURES = 4


class Handler(BaseHTTPRequestHandler):
    """The feature server; that of one rank restarts in the middle of the run."""

    refuse = 0
    requests = 0

    def do_GET(self):
        cls = type(self)
        cls.requests += 1
        if cls.requests > 10 and cls.refuse > 0:
            cls.refuse -= 1
            self.send_error(503)
            return
        body = json.dumps(torch.randn(8, 12).tolist()).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def fetch(url, attempts=8):
    """One batch, with exponential backoff."""
    for attempt in range(attempts):
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return torch.tensor(json.loads(answer.read()))
        except urllib.error.URLError as error:
            if attempt == attempts - 1:
                raise
            pause = 2**attempt
            print(f"fetch failed ({error}), retrying in {pause} s", flush=True)
            time.sleep(pause)


def main():
    accelerator = Accelerator(cpu=True)
    server = HTTPServer(("127.0.0.1", 0), Handler)
    Handler.refuse = FAILURES if accelerator.process_index == 2 else 0
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/batch"

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 12))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    for step in range(40):
        x = fetch(url)
        loss = nn.functional.mse_loss(model(x), x)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 0:
            accelerator.print(f"step {step} loss {loss.item():.4f}", flush=True)
    accelerator.wait_for_everyone()
    server.shutdown()
    accelerator.end_training()


if __name__ == "__main__":
    main()
