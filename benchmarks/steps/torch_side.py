# SPDX-License-Identifier: Apache-2.0
"""Opacus: item by item, by hooks that hold every item's gradient, or by ghost clipping."""

from collections.abc import Callable

import opacus
import torch
from opacus.layers import DPLSTM
from workloads import CLIP_NORM, LEARNING_RATE, NOISE_MULTIPLIER, Contender, Workload, data


class LastStep(torch.nn.Module):
    """Embedding, two recurrent layers, and a linear layer on the last step."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(80, 8)
        # Opacus trains its own recurrent layer, not torch.nn.LSTM.
        self.recurrent = DPLSTM(8, 256, num_layers=2, batch_first=True)
        self.head = torch.nn.Linear(256, 80)

    def forward(self, ids):
        states, _ = self.recurrent(self.embedding(ids))
        return self.head(states[:, -1])


def network(model: str) -> torch.nn.Module:
    nn = torch.nn
    if model == "mlp":
        return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    if model == "cnn":
        return nn.Sequential(
            nn.Conv2d(1, 32, 5, padding="same"),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding="same"),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(3136, 2048),
            nn.ReLU(),
            nn.Linear(2048, 62),
        )
    if model == "lstm":
        return LastStep()
    raise NotImplementedError(f"no {model} for PyTorch")


def prepare(contender: Contender, workload: Workload) -> Callable:
    """A function that trains under a `Clock` until that stops it."""
    x, y, _ = data(workload)
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    if workload.model == "cnn":
        x = x.permute(0, 3, 1, 2).contiguous()
    if workload.model == "lstm":
        x = x.long()
    model = network(workload.model)
    engine = opacus.PrivacyEngine()
    made = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), LEARNING_RATE),
        criterion=torch.nn.CrossEntropyLoss(),
        data_loader=torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(x, y), batch_size=workload.batch
        ),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIP_NORM,
        poisson_sampling=False,
        grad_sample_mode=contender.variant,
    )
    # Its loader collates row by row, which a user would avoid: the batch is ready here.
    if contender.variant == "ghost":
        model, optimizer, criterion, _ = made
    else:
        model, optimizer, _ = made
        criterion = torch.nn.CrossEntropyLoss()

    def train(clock) -> None:
        model.train()
        while True:
            clock.step_begins()
            optimizer.zero_grad(set_to_none=True)
            criterion(model(x), y).backward()
            optimizer.step()
            clock.step_ended()

    return train
