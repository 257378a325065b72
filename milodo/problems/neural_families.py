"""The paper's neural problems (Appendix E.2): an instance deals images to nodes and draws the first weights of a network."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from milodo.errors import LARGEST, InvalidInput, quoted, whole
from milodo.memory import need_memory
from milodo.problems import datasets
from milodo.problems.base import Family, checked_seeds, stream
from milodo.problems.models import Norm, ResNet, cnn, mlp
from milodo.problems.neural import Dealt, Neural, Pair
from milodo.problems.regularizers import L1, Regularizer, Zero
from milodo.problems.splits import check_split, split

Images = tuple[np.ndarray, np.ndarray]
TESTED = 1 << 36
"""Stands in a stream's key for: which test images are looked at."""
MNIST_MEAN, MNIST_STD = 0.1307, 0.3081
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
"""Of the training images' pixels, scaled to [0, 1], a channel each: the usual normalisation."""


@dataclass(frozen=True)
class NeuralFamily(Family):
    """An instance deals n N training images to n nodes and draws the first weights, both from its seed; test accuracy is on the
    data set's test part. r = lam ‖x‖₁, or none. Judged in fp32, as networks are."""

    n: int
    N: int = 5000
    lam: float = 0.0
    split: str = "uniform"
    minibatch: int | None = 100
    evaluate: int | None = field(default=None, compare=False)
    """Images that a look at the run takes of each node, and of the test part; all of them unless given."""

    pixels: ClassVar[int]
    """Numbers in an image."""
    judged_in: ClassVar[torch.dtype] = torch.float32

    def __post_init__(self) -> None:
        for name in ("n", "N", "minibatch", "evaluate"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), least=1, most=LARGEST)
        self.regularizer()
        check_split(self.split)

    @abstractmethod
    def images(self, part: str) -> Images:
        """Of the part 'train' or 'test', as the loader gives them, and their labels."""

    @abstractmethod
    def prepared(self, images: np.ndarray) -> Tensor:
        """As the network wants them."""

    @abstractmethod
    def module(self) -> nn.Module: ...

    def regularizer(self) -> Regularizer:
        return Zero() if self.lam == 0 else L1(self.lam)

    @cached_property
    def d(self) -> int:  # type: ignore[override]
        return sum(parameter.numel() for parameter in self.module().parameters())

    @property
    def kind(self) -> str:
        return type(self).__name__.removesuffix("Family").lower()

    @property
    def name(self) -> str:
        lam = repr(float(self.lam)).removesuffix(".0")
        usual = {one.name: one.default for one in fields(self)}
        others = (name for name in usual if name not in ("n", "N", "lam"))
        said = [f"{name} {getattr(self, name)}" for name in others if getattr(self, name) != usual[name]]
        return ", ".join([f"{self.kind}({self.n},{self.d},{self.N},{lam})", *said])

    def sample(
        self, seeds: Sequence[int], nodes: Sequence[int] | None = None,
        *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu",
    ) -> Neural:  # fmt: skip
        seeds, nodes = checked_seeds(seeds, self.name), tuple(range(self.n) if nodes is None else nodes)
        if not all(node in range(self.n) for node in nodes):
            raise InvalidInput(f"{self.name}: asked for nodes {quoted(list(nodes))}, but there are only 0 to {self.n - 1}.")
        images, labels = self.images("train")
        if self.n * self.N > len(images):
            raise InvalidInput(
                f"{self.name} needs {self.n * self.N:,} images, but there are only {len(images):,} here. Make n or N smaller."
            )
        needed = self.memory(len(seeds), len(nodes), dtype)
        need_memory(needed, f"{len(seeds)} instances of {self.name}", "Sample fewer of them, or make n or N smaller.")
        deals = [split(self.split, labels, self.n, self.N, seed=seed) for seed in seeds]
        held = np.stack([[deal[node] for node in nodes] for deal in deals])  # [instances, nodes, N]
        used, places = np.unique(held, return_inverse=True)
        pool = self.prepared(images[used]).to(device, dtype), torch.from_numpy(labels[used]).to(device)
        rows = [list(rows) for rows in torch.from_numpy(places.reshape(held.shape))]
        return Neural(
            self.module(), cross_entropy, Dealt(*pool, rows, nodes, self.n), reg=self.regularizer(), minibatch=self.minibatch,
            seed=seeds, test=lambda: _test_part(self, self.evaluate), evaluate=self.evaluate, dtype=dtype,
        )  # fmt: skip

    def memory(self, instances: int = 1, nodes: int | None = None, dtype: torch.dtype = torch.float32) -> int:
        """At most: instances share the images they have in common."""
        return instances * (self.n if nodes is None else nodes) * self.N * self.pixels * dtype.itemsize


@lru_cache(maxsize=2)
def _test_part(family: NeuralFamily, count: int | None) -> Pair:
    """Prepared once for all looks at a race."""
    images, labels = family.images("test")
    rows = np.sort(stream(TESTED).permutation(len(images))[:count])
    return family.prepared(images[rows]), torch.from_numpy(labels[rows])


@dataclass(frozen=True)
class MLPFamily(NeuralFamily):
    """784-16-16-10 on MNIST: 13,002 parameters."""

    n: int = 10
    pixels: ClassVar[int] = 28 * 28

    def images(self, part: str) -> Images:
        return datasets.mnist(part)

    def prepared(self, images: np.ndarray) -> Tensor:
        return torch.from_numpy(images.astype(np.float32)).div_(255).sub_(MNIST_MEAN).div_(MNIST_STD)

    def module(self) -> nn.Module:
        return mlp(self.pixels, 16, 16, 10)


@dataclass(frozen=True)
class ResNetFamily(NeuralFamily):
    """A small residual network on CIFAR-10: 78,042 parameters; norm = 'group' where nodes have unlike images."""

    n: int = 5
    norm: Norm = "batch"
    pixels: ClassVar[int] = 3 * 32 * 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm not in ("batch", "group"):
            raise InvalidInput(f"norm is {quoted(self.norm)}, but it must be 'batch' or 'group'.")

    def images(self, part: str) -> Images:
        return datasets.cifar10(part)

    def prepared(self, images: np.ndarray) -> Tensor:
        mean, std = (torch.tensor(value).reshape(3, 1, 1) for value in (CIFAR_MEAN, CIFAR_STD))
        return torch.from_numpy(images.astype(np.float32)).div_(255).sub_(mean).div_(std)

    def module(self) -> nn.Module:
        return ResNet(self.norm)


@dataclass(frozen=True)
class DigitsMLPFamily(NeuralFamily):
    """64-16-16-10 on scikit-learn's digits: nothing to download."""

    n: int = 10
    N: int = 100
    minibatch: int | None = 20
    pixels: ClassVar[int] = 64

    @property
    def kind(self) -> str:
        return "digits-mlp"

    def images(self, part: str) -> Images:
        return datasets.digits(part)

    def prepared(self, images: np.ndarray) -> Tensor:
        return torch.from_numpy(images.astype(np.float32))

    def module(self) -> nn.Module:
        return mlp(self.pixels, 16, 16, 10)


@dataclass(frozen=True)
class CNNFamily(MLPFamily):
    """Two convolutions with stride 2 and a linear layer on MNIST: 9,098 parameters."""

    n: int = 8
    N: int = 2000

    def prepared(self, images: np.ndarray) -> Tensor:
        return super().prepared(images).unsqueeze(1)

    def module(self) -> nn.Module:
        return cnn(7 * 7, first_stride=2)


@dataclass(frozen=True)
class DigitsCNNFamily(DigitsMLPFamily):
    """Two convolutions and a linear layer on scikit-learn's digits: 3,818 parameters."""

    @property
    def kind(self) -> str:
        return "digits-cnn"

    def prepared(self, images: np.ndarray) -> Tensor:
        return super().prepared(images).reshape(-1, 1, 8, 8)

    def module(self) -> nn.Module:
        return cnn(4 * 4, first_stride=1)
