"""The small networks in PyTorch, eager, from tensors in memory.

Argument: network ("mlp", "mnist" or "ptb").
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

Run = Callable[[int], object]


class Classifier(nn.Module):
    """LEGW's pure LSTM: 28 -> 128, LSTM 128, the last output -> 10."""

    def __init__(self) -> None:
        super().__init__()
        self.transform, self.logits = nn.Linear(28, 128), nn.Linear(128, 10)
        self.lstm = nn.LSTM(128, 128, batch_first=True)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        _, (h, _) = self.lstm(self.transform(images))
        return self.logits(h[0])


class LanguageModel(nn.Module):
    """Embedding 10,000 x 200, two LSTMs of 200, 200 -> 10,000."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.logits = nn.Embedding(10000, 200), nn.Linear(200, 10000)
        self.lstm = nn.LSTM(200, 200, 2)

    def forward(self, words: torch.Tensor, state: tuple | None) -> tuple[torch.Tensor, tuple]:
        outputs, state = self.lstm(self.embedding(words), state)
        return self.logits(outputs), state


def perceptron() -> nn.Module:
    """Four layers of 528 units with sigmoid."""
    hidden = [nn.Linear(784, 528), nn.Sigmoid()]
    for _ in range(3):
        hidden += [nn.Linear(528, 528), nn.Sigmoid()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(528, 10))


def classification(model: nn.Module, batch: int, optimizer: torch.optim.Optimizer) -> Run:
    """Trains on batches from a permutation per epoch."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand([60000, 28, 28], generator=generator)
    labels = torch.randint(0, 10, [60000], generator=generator)
    order, at = torch.randperm(60000, generator=generator), 0

    def run(steps: int) -> float:
        nonlocal order, at
        for _ in range(steps):
            if at + batch > 60000:
                order, at = torch.randperm(60000, generator=generator), 0
            rows = order[at : at + batch]
            at += batch
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
            loss.backward()
            optimizer.step()
        return float(loss)

    return run


def language(model: nn.Module, optimizer: torch.optim.Optimizer) -> Run:
    """Twenty streams, twenty words per step; carries and detaches the state."""
    words = torch.randint(0, 10000, [929589 // 20, 20])
    at, state = 0, None

    def run(steps: int) -> float:
        nonlocal at, state
        for _ in range(steps):
            if at + 21 > len(words):
                at, state = 0, None
            logits, state = model(words[at : at + 20], state)
            state = tuple(s.detach() for s in state)
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(logits.view(400, -1), words[at + 1 : at + 21].reshape(-1)) * 20
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            at += 20
        return float(loss)

    return run


def make(network: str) -> tuple[Run, dict[str, object]]:
    """Returns (function that trains N steps, facts about the contender)."""
    if network == "ptb":
        model = LanguageModel()
        run = language(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
    elif network == "mnist":
        model = Classifier()
        run = classification(model, 128, torch.optim.SGD(model.parameters(), 0.02, momentum=0.9))
    else:
        model = perceptron()
        run = classification(model, 100, torch.optim.SGD(model.parameters(), 0.05, weight_decay=0.001))
    return run, {"version": torch.__version__}
