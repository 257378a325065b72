"""What docs/data.md says of BSDS500's patches: units of grey, length of atoms, and what pruning does for K-SVD.

python benchmarks/patches.py        # about three minutes; needs milodo[data] and BSDS500
"""

from __future__ import annotations

import time

import numpy as np

from milodo.problems import BSDSLasso, dictionary, instance_seeds, optimum

ROUNDS = 30
PLANTED = range(300, 310)


def planted(seed: int) -> float:
    """Part of 30 atoms in R^20 that K-SVD finds, up to sign and order, in 1,000 combinations of three with 1 % noise."""
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal((30, 20))
    truth /= np.linalg.norm(truth, axis=1, keepdims=True)
    codes = np.zeros((1000, 30))
    for code in codes:
        code[rng.choice(30, 3, replace=False)] = rng.choice([-1, 1], 3) * rng.uniform(0.5, 2, 3)
    found = dictionary.ksvd(codes @ truth + 0.01 * rng.standard_normal((1000, 20)), 30, 3, ROUNDS)
    return float((np.abs(truth @ found.T).max(1) > 0.99).mean())


def main() -> None:
    often = dictionary.PRUNED
    for name, pruned in (("never pruned", ROUNDS), (f"pruned every {often} rounds", often)):
        dictionary.PRUNED = pruned
        parts = sorted(planted(seed) for seed in PLANTED)
        print(f"planted dictionaries, {name}: found {parts[0]:.0%} to {parts[-1]:.0%}, mean {np.mean(parts):.0%}")
    dictionary.PRUNED = often

    start = time.process_time()
    family = BSDSLasso()
    problem = family.sample(instance_seeds("test", 1000))
    print(f"1,000 instances of {family.name}: {time.process_time() - start:.0f} s of one core (with the dictionary, unless kept)")
    A, b = problem.A[0].flatten(0, 1).numpy(), problem.b.flatten(1).numpy()
    largest = np.abs(b @ A / len(A)).max(1)  # the smallest lam at which the best code is 0
    for unit, scale in (("0 to 255", 1.0), ("0 to 1", 255.0)):
        print(f"grey from {unit}: the best code of {np.mean(largest / scale <= family.lam):.1%} of the patches is 0")
    length, low, high = float(np.linalg.norm(A[:, 0])), *(float(v) for v in problem.lipschitz()[0].aminmax())
    print(f"atoms of length {length:.2f}: L_i from {low:.1f} to {high:.1f}; of length 1: at most {high / length**2:.2f}")
    few = family.sample(instance_seeds("test", 32))
    used = (optimum(few).x != 0).sum(-1)
    print(f"coefficients that are not 0, of {family.d}, in 32 optima: {used.min()} to {used.max()}, median {used.median()}")


if __name__ == "__main__":
    main()
