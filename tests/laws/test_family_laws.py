"""Instances of every registered family: named by seeds, the same everywhere, distributed as the paper says."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import norm

from milodo.errors import InvalidInput
from milodo.problems import FAMILIES, L1, Box, Lasso, Logistic, Zero, instance_seeds
from milodo.problems.linear_family import LinearFamily
from milodo.problems.synthetic import sparse_truth

FIXED = {"bsds-lasso": (5, 8, 5), "gabor-lasso": (5, 8, 5), "census": (5, 14, 6), "breast-cancer": (5, 30, 6)}
"""Shapes of families whose data have a say in them: a square of pixels, 14 attributes, 30 features."""


@pytest.fixture(params=[kind for kind, family in FAMILIES.items() if issubclass(family, LinearFamily)])
def family(request: pytest.FixtureRequest, small_data):
    return FAMILIES[request.param](*FIXED.get(request.param, (5, 8, 6)), 0.1)


def same(a, b) -> bool:
    return torch.equal(a.A, b.A) and torch.equal(a.b, b.b) and a.reg == b.reg


def test_an_instance_is_named_by_its_seed_alone(family):
    together = family.sample([4, 9, 4])
    assert same(together, family.sample([4, 9, 4]))
    assert torch.equal(together.A[0], together.A[2]) and torch.equal(together.b[0], together.b[2])
    assert torch.equal(together.A[1:2], family.sample([9]).A)
    assert not torch.equal(together.b[0], together.b[1])


@pytest.mark.parametrize("nodes", [[0], [1, 3], [4], range(5)], ids=str)
def test_a_process_builds_only_the_nodes_it_holds(family, nodes):
    assert same(family.sample([4, 9], nodes=nodes), family.sample([4, 9]).at(nodes))


def test_nodes_have_data_of_their_own(family):
    A = family.sample([0]).A[0]
    assert all(not torch.equal(A[i], A[j]) for i, j in itertools.combinations(range(5), 2))


def test_an_fp32_instance_is_the_rounded_fp64_one(family):
    single, double = family.sample([1, 2], dtype=torch.float32), family.sample([1, 2])
    assert single.dtype == torch.float32 and double.dtype == torch.float64
    assert torch.equal(single.A, double.A.float()) and torch.equal(single.b, double.b.float())


def test_large_instances_drawn_in_pieces_are_the_same(family, monkeypatch):
    whole = family.sample([3])
    monkeypatch.setattr("milodo.problems.synthetic.AT_ONCE", 2 * family.d)
    pieces = family.sample([3])
    assert torch.equal(whole.A, pieces.A)
    torch.testing.assert_close(whole.b, pieces.b, rtol=0, atol=1e-14)  # A x summed in another order


def test_the_matrices_are_standard_normal():
    A = Lasso(10, 100, 100).sample([0]).A.flatten()
    # 100,000 numbers: 5 standard errors of mean and standard deviation are 5/√1e5.
    assert abs(A.mean()) < 0.016 and abs(A.std() - 1) < 0.016


def test_three_quarters_of_the_truth_are_zero():
    problem = Lasso(4, 40, 2000).sample([0])
    A, b = problem.A[0].flatten(0, 1), problem.b[0].flatten()
    found = torch.linalg.lstsq(A, b.unsqueeze(-1)).solution.squeeze(-1)
    # 8000 samples with noise 0.1 give each coordinate a standard error of 0.1/√8000 = 0.0011.
    assert int((found.abs() < 0.01).sum()) == 30
    np.testing.assert_allclose(found.numpy(), sparse_truth(40, 0), rtol=0, atol=0.01)


def test_the_smallest_entries_of_the_truth_are_the_ones_set_to_zero():
    kept = np.abs(sparse_truth(4000, 0))
    kept = kept[kept > 0]
    assert len(kept) == 1000
    # A normal number exceeds Φ⁻¹(7/8) in size with probability 1/4; 0.1 is far more than the error of this quantile.
    assert kept.min() == pytest.approx(norm.ppf(7 / 8), abs=0.1)


def test_the_noise_of_lasso_is_a_tenth():
    problem = Lasso(4, 40, 2000).sample([0])
    noise = problem.b[0] - problem.A[0] @ torch.from_numpy(sparse_truth(40, 0))
    # 8000 numbers: 5 standard errors are 0.1 · 5/√8000 = 0.006.
    assert abs(noise.mean()) < 0.006 and abs(noise.std() - 0.1) < 0.006


def test_labels_of_logistic_say_on_which_side_of_the_truth_a_sample_lies():
    problem = Logistic(4, 40, 50).sample([0])
    side = problem.A[0] @ torch.from_numpy(sparse_truth(40, 0)) >= 0
    assert torch.equal(problem.b[0], side.double())
    assert 0 < problem.b.mean() < 1


def test_lam_makes_the_regularizer_unless_one_is_given():
    assert Lasso(2, 3, 4, 0.2).sample([0]).reg == L1(0.2)
    assert Lasso(2, 3, 4, 0).sample([0]).reg == Zero()
    assert Lasso(2, 3, 4, reg=Box(0.0, 1.0)).sample([0]).reg == Box(0.0, 1.0)


def test_instances_for_different_purposes_never_meet():
    taken = [
        set(instance_seeds(purpose, 1000, seed)) for purpose in ("test", "tuning", "training", "validation") for seed in range(3)
    ]
    assert all(len(seeds) == 1000 for seeds in taken)
    assert len(set.union(*taken)) == 12_000


def test_the_last_seed_of_a_purpose_stops_before_the_next():
    with pytest.raises(InvalidInput, match="at most 999,999"):
        instance_seeds("test", 10**6)
    assert instance_seeds("test", 999_999)[-1] < instance_seeds("tuning", 1)[0]


@pytest.mark.parametrize("sizes", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (-1, 3, 4)])
def test_a_family_without_nodes_unknowns_or_samples_is_refused(family, sizes):
    with pytest.raises(InvalidInput, match="must be a whole number >= 1"):
        type(family)(*sizes)


@pytest.mark.parametrize("lam", [-0.1, float("nan"), float("inf")])
def test_a_penalty_that_is_no_penalty_is_refused(family, lam):
    with pytest.raises(InvalidInput, match="a penalty must be a finite number >= 0"):
        type(family)(2, 3, 4, lam)


def test_asking_for_no_instances_is_refused(family):
    with pytest.raises(InvalidInput, match="Give at least one seed"):
        family.sample([])


def test_a_family_is_called_by_its_shape():
    assert Lasso(10, 300, 10, 0.1).name == "lasso(10,300,10,0.1)"
    assert Logistic(2, 3, 4, reg=L1(0.5)).name == "logistic(2,3,4) + L1(lam=0.5)"
