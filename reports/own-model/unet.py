"""A small U-Net (Ronneberger et al., 2015) that finds cells in images made here."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset


def convolutions(channels_in: int, channels_out: int) -> nn.Sequential:
    """Two convolutions; group norm, as it is the same however ranks share a batch."""
    layers: list[nn.Module] = []
    for channels in (channels_in, channels_out):
        layers += [
            nn.Conv2d(channels, channels_out, 3, padding=1),
            nn.GroupNorm(4, channels_out),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """From images (samples, 1, y, x) to one logit for each pixel, (samples, 1, y, x)."""

    def __init__(self, width: int = 16, depth: int = 3) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth)]
        self.down = nn.ModuleList(map(convolutions, [1, *widths[:-1]], widths))
        self.up = nn.ModuleList(
            convolutions(fine + coarse, fine)
            for fine, coarse in zip(widths[-2::-1], widths[:0:-1], strict=True)
        )
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The logit of each pixel to lie in a cell."""
        x, skipped = images, []
        for number, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if number else x)
            skipped.append(x)
        for block, skip in zip(self.up, skipped[-2::-1], strict=True):
            x = functional.interpolate(x, scale_factor=2.0)
            x = block(torch.cat([skip, x], dim=1))
        return self.head(x)


def dice_and_cross_entropy(logits: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """The mean over images of one less the Dice coefficient, and of the cross-entropy."""
    shares = torch.sigmoid(logits)
    overlap = 2 * (shares * masks).sum(dim=(1, 2, 3)) + 1
    dice = overlap / (shares.sum(dim=(1, 2, 3)) + masks.sum(dim=(1, 2, 3)) + 1)
    return (1 - dice).mean() + functional.binary_cross_entropy_with_logits(logits, masks)


class Cells(Dataset):
    """Bright discs on noise, each image drawn anew from its own seed."""

    def __init__(self, images: int, size: int, seed: int) -> None:
        self.images, self.size, self.seed = images, size, seed

    def __len__(self) -> int:
        return self.images

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        random = np.random.default_rng([self.seed, index])
        y, x = np.mgrid[: self.size, : self.size]
        mask = np.zeros((self.size, self.size), dtype=bool)
        for _ in range(random.integers(2, 6)):
            row, column = random.uniform(0, self.size, 2)
            radius = random.uniform(self.size / 16, self.size / 6)
            mask |= (y - row) ** 2 + (x - column) ** 2 < radius**2
        image = mask + random.normal(0, 0.5, mask.shape)
        return torch.tensor(image[None], dtype=torch.float32), torch.tensor(mask[None]).float()


def cells(images: int, size: int, seed: int) -> tuple[Cells, Cells]:
    """The images to train on, and a quarter as many held out."""
    return Cells(images, size, seed), Cells(images // 4, size, seed + 1)
