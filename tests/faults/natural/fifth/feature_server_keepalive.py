"""Rank 0 serves features with a server that handles one connection at a time, and the first client keeps its connection open, so the second waits for its answer forever.

Modelled on reports about socketserver.TCPServer and keep-alive clients (ThreadingTCPServer was meant).
"""
# case: processes=3 ending=hang causes=stalled-outside-collectives,rank-missing-collective,network-fabric-fault,straggler,p2p-without-partner ranks=- framework=torch.distributed

import json
import socket
import socketserver
import threading

import torch
import torch.distributed as dist
from torch import nn

USERS, FEATURES = 400, 12


class Handler(socketserver.StreamRequestHandler):
    """Answer one user id per line with the features of that user."""

    def handle(self):
        for line in self.rfile:
            g = torch.Generator().manual_seed(int(line))
            row = torch.randn(FEATURES, generator=g).tolist()
            self.wfile.write((json.dumps(row) + "\n").encode())
            self.wfile.flush()


class Client:
    def __init__(self, address):
        self.socket = socket.create_connection(address)
        self.lines = self.socket.makefile("r")

    def features(self, user):
        self.socket.sendall(f"{user}\n".encode())
        return json.loads(self.lines.readline())  # GUILTY

    def batch(self, users):
        return torch.tensor([self.features(user) for user in users])  # ALSO


def serve():
    server = socketserver.TCPServer(("127.0.0.1", 0), Handler)  # ALSO
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    box = [serve() if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    client = Client(tuple(box[0]))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(rank)
    for step in range(60):
        users = torch.randint(0, USERS, (8,), generator=g).tolist()
        clicks = torch.tensor([float(user % 3 == 0) for user in users])
        loss = nn.functional.binary_cross_entropy_with_logits(model(client.batch(users)).squeeze(1), clicks)  # ALSO
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
            p.grad /= world
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
