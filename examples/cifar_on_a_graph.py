"""CIFAR-10 on a graph: one process a node, each with its own images, an ordinary training loop, and no server.

    torchrun --nproc-per-node 4 examples/cifar_on_a_graph.py --data-dir DIR

DIR has cifar10/cifar-10-batches-bin (docs/data.md). Only the line with `milodo.gossip` and its indentation make it decentralised.
"""

import argparse
import os

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import milodo
from milodo.problems.datasets import cifar10
from milodo.problems.models import ResNet
from milodo.problems.splits import split

parser = argparse.ArgumentParser()
parser.add_argument("--data-dir", help="where data sets lie; $MILODO_DATA unless given")
parser.add_argument("--graph", default="ring")
parser.add_argument("--method", default="qg-dsgdm")
parser.add_argument("--split", default="dirichlet(0.1)", help="or 'uniform' or 'label': how unlike the nodes' images are")
parser.add_argument("--steps", type=int, default=600)
parser.add_argument("--batch", type=int, default=32)
asked = parser.parse_args()
if asked.data_dir:
    os.environ["MILODO_DATA"] = asked.data_dir
node, nodes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)


def dataset(images: np.ndarray, labels: np.ndarray) -> TensorDataset:
    return TensorDataset((torch.tensor(images).float() / 255 - 0.47) / 0.25, torch.tensor(labels))


images, labels = cifar10("train")
own = split(asked.split, labels, nodes, seed=0)[node]
loader = DataLoader(dataset(images[own], labels[own]), asked.batch, shuffle=True, drop_last=True)
model = ResNet("group")  # where nodes' images are unlike, normalise an image by itself, not by its batch
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)

with milodo.gossip(model, optimizer, graph=asked.graph, method=asked.method) as g:
    while g.k < asked.steps:
        for inputs, targets in loader:
            loss = cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if g.k == asked.steps:
                break
    spread = g.consensus_error()
    with g.average(), torch.no_grad():
        test = dataset(*cifar10("test"))
        right = sum(int((model(inputs).argmax(1) == targets).sum()) for inputs, targets in DataLoader(test, 500))
    if node == 0:
        print(f"accuracy {right / len(test):.3f}, consensus error {spread:.2g}, {g.traffic.bytes / 1e6:.1f} MB sent")
