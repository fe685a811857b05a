import torch.nn.functional as F


def reconstruction_loss(recon, images, edge_weight=0.5):
    loss = F.l1_loss(recon, images)
    for dim in (2, 3):
        loss = loss + edge_weight * F.l1_loss(recon.diff(dim=dim), images.diff(dim=dim))
    return loss
