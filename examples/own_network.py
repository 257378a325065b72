"""Your own network on your own data in fifteen lines: eight sites, each with its own corner of two moons, learn one classifier.

python examples/own_network.py
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import milodo

torch.manual_seed(0)
n, N = 8, 100


def moons(count):
    angle, label = torch.linspace(0, torch.pi, count // 2).repeat(2), torch.arange(count) // (count // 2)
    points = torch.stack((angle.cos() + label, (1 - 2 * label) * angle.sin() + label / 2), dim=-1)
    return points + 0.1 * torch.randn(count, 2), label


# --- the fifteen lines ---------------------------------------------------------------------------------------------
module = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
points, label = moons(n * N)
data = [(points[rows], label[rows]) for rows in torch.arange(n * N).chunk(n)]  # a site sees one arc of one moon only
problem = milodo.Neural(module, cross_entropy, data, minibatch=20, test=moons(400))
net = milodo.StackedNetwork("grid(2x4)", dtype=problem.dtype)
method = milodo.ProxED(gamma=0.5)
result = milodo.solve(method, problem, net, milodo.Stop(steps=600))
accuracy = problem.metrics(result.x, milodo.StackedObserver())
# -------------------------------------------------------------------------------------------------------------------

alone = milodo.solve(method, problem.at([0]), milodo.StackedNetwork("path(1)", dtype=problem.dtype), milodo.Stop(steps=200))
print(result)
print(f"loss on all data         {result.objective:.3f}, consensus error {result.consensus:.1e}")
print(f"accuracy                 {accuracy['test_accuracy']:.3f}, of the worst site's model {accuracy['worst_accuracy']:.3f}")
with torch.no_grad():
    nn.utils.vector_to_parameters(alone.x[0], module.parameters())
    print(f"of site 0 without others {(module(points).argmax(-1) == label).float().mean():.3f}")
