"""Your own objective in ten lines: robust (Huber) regression with a sparse solution, data spread over eight sites.

python examples/own_objective.py
"""

import torch
from torch.nn.functional import huber_loss

import milodo

torch.manual_seed(0)
n, N, d = 8, 30, 12
truth = torch.zeros(d, dtype=torch.float64)
truth[:3] = torch.tensor([2.0, -1.0, 0.5])
A = torch.randn(n, N, d, dtype=torch.float64)
b = A @ truth + 0.1 * torch.randn(n, N, dtype=torch.float64)
b[:, 0] += 50  # every site has one broken sensor


# --- the ten lines -------------------------------------------------------------------------------------------------
def f(x, site):
    """f_i(x): any torch function of x [d] and one site's data; it is vmapped over sites and differentiated for you."""
    return huber_loss(site["A"] @ x, site["b"])


problem = milodo.CustomProblem(f, {"A": A, "b": b}, d, milodo.L1(0.01))
net = milodo.StackedNetwork("grid(2x4)")
method = milodo.ProxED(gamma=0.5)
result = milodo.solve(method, problem, net, milodo.Stop(steps=2000))
# -------------------------------------------------------------------------------------------------------------------

x = result.x.mean(0)
least_squares = torch.linalg.lstsq(A.flatten(0, 1), b.flatten()).solution
print(result)
print(f"consensus error      {result.consensus:.1e}")
print(f"distance to truth    {(x - truth).norm():.3f} (of least squares: {(least_squares - truth).norm():.3f})")
print(f"bytes sent by a site {net.traffic.bytes / n:,.0f} over {net.traffic.rounds} rounds")
