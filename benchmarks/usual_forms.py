"""Losses, metrics, a training loop and a hypergradient as they are usually written, to be measured beside ours."""
import torch
import torch.nn.functional as F
from torch.func import functional_call

from calibnb import losses


def focal(logits, target, gamma=3.):
    ce = F.cross_entropy(logits, target, reduction="none")
    return ((1 - torch.exp(-ce))**gamma*ce).mean()


def bsce(logits, target, gamma=2.):
    probs = logits.softmax(1)
    weight = (probs - F.one_hot(target, probs.shape[1])).abs().pow(2).sum(1).pow(gamma/2)
    return (weight*F.cross_entropy(logits, target, reduction="none")).mean()


def dual_focal(logits, target, gamma=5.):
    log_p = F.log_softmax(logits, 1)
    log_p_y, probs = log_p.gather(1, target[:, None])[:, 0], log_p.exp()
    p_y = probs.gather(1, target[:, None])
    p_j = torch.topk(probs*(probs < p_y), 1, dim=1)[0][:, 0]
    return (-(1 - p_y[:, 0] + p_j)**gamma*log_p_y).mean()


def mmce_penalty(logits, target, width=.4):
    "By a matrix of all pairs."
    conf, pred = logits.softmax(1).max(1)
    error = (pred == target).float() - conf
    return (error[:, None]*error*torch.exp(-(conf[:, None] - conf).abs()/width)).mean()


def mmce(logits, target, width=.4, lam=2.):
    return F.cross_entropy(logits, target) + lam*mmce_penalty(logits, target, width)


LOSSES = dict(ce=F.cross_entropy, focal=focal, bsce=bsce, dual_focal=dual_focal, mmce=mmce)


def gap_in_bins(conf, hit, n_bins=15):
    "The binned error of confidences, a bin at a time."
    edges = torch.linspace(0, 1, n_bins + 1).tolist()
    error = conf.new_zeros(())
    for low, high in zip(edges, edges[1:]):
        inside = (conf > low) & (conf <= high)
        share = inside.float().mean()
        if share.item() > 0:
            error += share*(conf[inside].mean() - hit[inside].mean()).abs()
    return error


def ece(probs, target):
    conf, pred = probs.max(1)
    return gap_in_bins(conf, (pred == target).float())


def classwise_ece(probs, target):
    columns = enumerate(probs.unbind(1))
    return torch.stack([gap_in_bins(p, (target == k).float()) for k, p in columns]).mean()


def nll(probs, target):
    return F.nll_loss(probs.log(), target)


def brier_score(probs, target):
    return (probs - F.one_hot(target, probs.shape[1])).square().sum(1).mean()


METRICS = dict(ece=ece, classwise_ece=classwise_ece, nll=nll, brier_score=brier_score)


def training_steps(model, loader, optimizer, device="cpu", loss_fn=F.cross_entropy, clip=None):
    "Train for an epoch, a batch after the other to the device, and wait for its loss; yields that."
    model.train()
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        value = loss.item()
        optimizer.step()
        yield value


def double_backward_step(step, batch, scope, lr=.1):
    "What a `MetaStepper` does, with the hypergradient by a graph of second order."
    model, inner = step.model, step.inner
    x_other, y_other = step.meta_batches.next(step.device)
    features = model.features(batch.x)
    each = losses.focal_loss(model.head(features), batch.y, inner(features), reduction="none")
    weights = dict(model.named_parameters())
    moving = {k: w for k, w in weights.items() if scope == "full" or k.startswith("head")}
    grads = torch.autograd.grad(each.mean(), list(moving.values()), create_graph=True)
    moved = weights | {k: w - lr*g for (k, w), g in zip(moving.items(), grads)}
    outer_loss = step.meta.outer_loss(functional_call(model, moved, (x_other,)), y_other)
    torch.autograd.grad(outer_loss, list(inner.parameters()), retain_graph=True)
    each.mean().backward()
    step.optimizer.step()
    model.zero_grad()
