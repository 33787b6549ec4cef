"""Trains a small convolutional network on synthetic images: plain PyTorch, alone or under torchrun.

python train.py
torchrun --nproc-per-node 2 train.py --batch-size 16
"""

import argparse
import os
import time

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32, help="samples of each rank in a step")
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--epochs", type=int, default=20)
options = parser.parse_args()

ranks = int(os.environ.get("WORLD_SIZE", 1))
if ranks > 1:
    dist.init_process_group("gloo")

torch.manual_seed(0)
classes = torch.randint(10, (2048,))
images = torch.randn(2048, 3, 32, 32) + classes[:, None, None, None] / 10
data = TensorDataset(images, classes)
sampler = DistributedSampler(data) if ranks > 1 else None
loader = DataLoader(data, options.batch_size, shuffle=sampler is None, sampler=sampler)

width = options.width
model: nn.Module = nn.Sequential(
    *(nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(2 * width, 4 * width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
    *(nn.Flatten(), nn.Linear(4 * width, 10)),
)
if ranks > 1:
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loss_of = nn.CrossEntropyLoss()

step, begin = 0, time.perf_counter()
for epoch in range(options.epochs):
    if sampler is not None:
        sampler.set_epoch(epoch)
    for x, y in loader:
        loss = loss_of(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step, end = step + 1, time.perf_counter()
        print(f"step {step}: loss {loss.item():.4f}, {1e3 * (end - begin):.2f} ms", flush=True)
        begin = end

if ranks > 1:
    dist.destroy_process_group()
