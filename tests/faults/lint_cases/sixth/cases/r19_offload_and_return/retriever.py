import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from index import FlatIndex


class RetrieverTrainer:
    def __init__(self, encoder, corpus, queries, positives, args, device):
        self.args, self.device = args, device
        self.corpus, self.queries, self.positives = corpus, queries, positives
        self.model = DistributedDataParallel(encoder.to(device), device_ids=[device.index])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.negatives = torch.randint(corpus.size(0), (queries.size(0), args.negatives))

    @torch.no_grad()
    def encode(self, tokens):
        encoder = self.model.module.eval()
        parts = [encoder(chunk.to(self.device)).cpu() for chunk in tokens.split(self.args.encode_batch)]
        return torch.cat(parts)

    def refresh_negatives(self):
        passages, questions = self.encode(self.corpus), self.encode(self.queries)
        self.model.cpu()
        torch.cuda.empty_cache()
        index = FlatIndex(self.device)
        index.build(passages)
        found = torch.cat([index.search(q, self.args.negatives + 1) for q in questions.split(1024)])
        index.release()
        self.model.to(self.device)
        own = found == self.positives.unsqueeze(1)
        found[own] = self.negatives[own.any(1), 0]
        self.negatives = found[:, : self.args.negatives]

    def loss(self, ids):
        passages = torch.cat([self.positives[ids].unsqueeze(1), self.negatives[ids]], dim=1)
        tokens = torch.cat([self.queries[ids], self.corpus[passages.flatten()]]).to(self.device)
        vectors = self.model(tokens)
        questions, docs = vectors[: len(ids)], vectors[len(ids):]
        scores = questions @ docs.t() / self.args.temperature
        target = torch.arange(len(ids), device=self.device) * passages.size(1)
        return F.cross_entropy(scores, target)

    def train(self, sampler):
        for epoch in range(self.args.epochs):
            sampler.set_epoch(epoch)
            if epoch > 0:
                self.refresh_negatives()
            self.model.train()
            ids = torch.tensor(list(sampler))
            for step, chunk in enumerate(ids.split(self.args.batch_size)):
                loss = self.loss(chunk)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                if step % 50 == 0 and dist.get_rank() == 0:
                    print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            if dist.get_rank() == 0:
                torch.save(self.model.module.state_dict(), self.args.output)
