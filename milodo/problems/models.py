"""The paper's networks (Appendix E.2): a small perceptron and a small residual network, parameter for parameter."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from torch import Tensor, nn

Norm = Literal["batch", "group"]
GROUPS = 8
"""Of GroupNorm: two channels each in the narrowest layer."""


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them; mlp(784, 16, 16, 10) is the paper's, with 13,002 parameters."""
    layers: list[nn.Module] = [nn.Flatten()]
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def cnn(places: int, first_stride: int) -> nn.Sequential:
    """Two 3x3 convolutions to 8 and 16 channels, the second with stride 2, and a linear layer on what is left, `places` of each
    channel."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, first_stride, 1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * places, 10),
    )


def normalised(channels: int, norm: Norm) -> nn.Module:
    """BatchNorm in batch mode, which keeps no statistics, or GroupNorm, which needs none: both with scale and shift."""
    return nn.BatchNorm2d(channels, track_running_stats=False) if norm == "batch" else nn.GroupNorm(GROUPS, channels)


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, inside: int, out: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, out, 3, stride, 1, bias=False), normalised(out, norm), nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False), normalised(out, norm),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inside != out:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), normalised(out, norm))

    def forward(self, x: Tensor) -> Tensor:
        return (self.body(x) + self.shortcut(x)).relu()


class ResNet(nn.Module):
    """3x3 convolution to 16 channels, three blocks of 16, 32 and 64, average over the image, linear layer: 78,042 parameters."""

    def __init__(self, norm: Norm = "batch", classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), normalised(16, norm), nn.ReLU())
        self.blocks = nn.Sequential(Block(16, 16, 1, norm), Block(16, 32, 2, norm), Block(32, 64, 2, norm))
        self.head = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((-2, -1)))
