import torch
import torch.nn.functional as F


def run_epoch(model, loader, metrics, device, optimizer=None):
    training = optimizer is not None
    model.train(training)
    metrics.reset()
    total_loss, n = 0.0, 0
    with torch.set_grad_enabled(training):
        for points, fields in loader:
            points, fields = points.to(device), fields.to(device)
            prediction = model(points)
            loss = F.mse_loss(prediction, fields)
            if training:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            metrics.update(prediction.detach(), fields)
            total_loss += loss.item()
            n += 1
    avg_loss = total_loss / n
    return avg_loss, metrics.compute()
