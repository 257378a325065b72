"""Problems made of real data: what stands in A and b, from which part it comes, and what the units of a patch are."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import small_data as small
import torch

from milodo.errors import InvalidInput
from milodo.network import StackedObserver
from milodo.paper.step_sizes import published
from milodo.problems import BreastCancer, BSDSLasso, Census, LogisticRegression, Zero, dictionary, instance_seeds, optimum
from milodo.problems.datasets import breast_cancer, bsds500, census
from milodo.problems.dictionary import dictionary as learnt
from milodo.problems.dictionary import ksvd

PURPOSES = ("test", "tuning", "training", "validation")


def rows_of(X: np.ndarray, y: np.ndarray) -> list[tuple[float, ...]]:
    return [tuple(row) for row in np.c_[X, y].tolist()]


# The dictionary


def test_ksvd_finds_a_planted_dictionary():
    rng = np.random.default_rng(200)
    planted = rng.standard_normal((30, 20))
    planted /= np.linalg.norm(planted, axis=1, keepdims=True)
    codes = np.zeros((1000, 30))
    for code in codes:
        code[rng.choice(30, 3, replace=False)] = rng.choice([-1, 1], 3) * rng.uniform(0.5, 2, 3)
    found = ksvd(codes @ planted + 0.01 * rng.standard_normal((1000, 20)), atoms=30, sparsity=3, rounds=24)
    assert found.shape == (30, 20)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-12)
    # Up to sign and order; K-SVD may end in a local optimum, where some atoms are not found.
    assert (np.abs(planted @ found.T).max(1) > 0.99).mean() >= 0.85


def test_a_dictionary_is_learnt_once_and_then_read(small_data, monkeypatch, tmp_path):
    monkeypatch.setenv("MILODO_CACHE", str(tmp_path))
    D = learnt(4, 10)
    assert D.shape == (16, 10)
    np.testing.assert_allclose(np.linalg.norm(D, axis=0), 1, atol=1e-12)
    np.testing.assert_allclose(D.sum(0), 0, atol=1e-10)  # patches without mean have codes of atoms without mean
    dictionary._dictionary.cache_clear()
    monkeypatch.setattr(dictionary, "ksvd", lambda *_: pytest.fail("learnt again"))
    assert np.array_equal(learnt(4, 10), D)


def test_a_dictionary_is_the_same_wherever_it_is_learnt(small_data, monkeypatch, tmp_path):
    both = []
    for name in ("one", "other"):
        monkeypatch.setenv("MILODO_CACHE", str(tmp_path / name))
        both.append(learnt(3, 6))
    assert both[0] is not both[1] and np.array_equal(*both)


def code_on_disk(path) -> None:
    np.save(path, np.array([{"run": print}], dtype=object), allow_pickle=True)


@pytest.mark.parametrize("damage", [
    lambda path: path.write_bytes(b""), lambda path: path.write_bytes(b"damaged"), lambda path: np.save(path, np.ones((6, 8))),
    lambda path: np.save(path, np.full((6, 9), np.nan)), code_on_disk,
])  # fmt: skip
def test_a_damaged_dictionary_is_learnt_anew(small_data, monkeypatch, tmp_path, damage):
    monkeypatch.setenv("MILODO_CACHE", str(tmp_path))
    D = learnt(3, 6)
    (path,) = tmp_path.rglob("*.npy")
    damage(path)
    dictionary._dictionary.cache_clear()
    assert np.array_equal(learnt(3, 6), D)
    dictionary._dictionary.cache_clear()
    assert np.array_equal(np.load(path, allow_pickle=False).T, D)


def test_a_cache_that_cannot_be_written_costs_only_time(small_data, monkeypatch, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("MILODO_CACHE", str(tmp_path / "file"))
    assert learnt(3, 6).shape == (9, 6)


def test_without_dictlearn_a_dictionary_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dictlearn", None)
    with pytest.raises(InvalidInput, match=r"dictlearn, which is not installed. Install milodo\[data\]"):
        ksvd(np.ones((3, 2)), 1, 1, 1)


# Patches


@pytest.mark.parametrize("purpose", PURPOSES)
def test_a_patch_comes_from_the_part_its_purpose_allows(small_data, purpose):
    family = BSDSLasso(4, 10, 4)
    b = family.sample(instance_seeds(purpose, 6)).b.flatten(1).numpy()
    windows = {
        part: np.concatenate([
            np.lib.stride_tricks.sliding_window_view(255 * image, (4, 4)).reshape(-1, 16) for image in bsds500(part)
        ])
        for part in ("train", "test")
    }  # fmt: skip
    for patch in b:
        near = {part: np.abs(cut - cut.mean(1, keepdims=True) - patch).max(1).min() < 1e-10 for part, cut in windows.items()}
        assert near == {"test": purpose == "test", "train": purpose != "test"}


def test_the_atoms_have_one_length_that_gives_the_curvature_of_normal_matrices(small_data):
    family = BSDSLasso(4, 10, 4)
    problem = family.sample([0, 1])
    A = problem.A.flatten(1, 2)
    assert torch.equal(A[0], A[1])
    lengths = torch.linalg.vector_norm(A[0], dim=0)
    torch.testing.assert_close(lengths, lengths[:1].expand(10), rtol=1e-10, atol=0)
    np.testing.assert_allclose((A[0] / lengths).numpy(), learnt(4, 10), atol=1e-12)
    assert problem.lipschitz().max().item() == pytest.approx((10**0.5 + 4**0.5) ** 2 / 4, rel=1e-10)


def test_pixels_that_make_no_square_are_refused():
    with pytest.raises(InvalidInput, match="the 30 pixels that 5 nodes with 6 each hold make no square"):
        BSDSLasso(5, 10, 6)


def test_more_atoms_than_patches_are_refused(small_data):
    with pytest.raises(InvalidInput, match="d is 121, but a dictionary of more atoms than the 120 patches"):
        BSDSLasso(2, 121, 2).sample([0])


# Rows


@pytest.mark.parametrize("purpose", PURPOSES)
def test_people_come_from_the_part_their_purpose_allows_and_each_once(small_data, purpose):
    problem = Census(4, N=10).sample(instance_seeds(purpose, 1))
    drawn = rows_of(problem.A[0].flatten(0, 1).numpy(), problem.b[0].flatten().numpy())
    allowed = rows_of(*census("test" if purpose == "test" else "train"))
    assert len(set(drawn)) == 40 and set(drawn) <= set(allowed)


def test_more_people_than_there_are_are_refused(small_data):
    with pytest.raises(InvalidInput, match=r"census\(10,14,9,0.1\) needs 90 rows, but the test part of Census Income has 81"):
        Census(10, N=9).sample([0])


@pytest.mark.parametrize("n", [1, 4, 10, 569])
def test_all_patients_are_dealt_and_count_alike(n):
    family = BreastCancer(n, reg=Zero())
    problem, (X, y) = family.sample([3]), breast_cancer()
    held = torch.ones_like(problem.b, dtype=torch.bool) if problem.weights is None else problem.weights > 0
    assert sorted(rows_of(problem.A[held].numpy(), problem.b[held].numpy())) == sorted(rows_of(X, y))
    counts = held.sum(-1)
    assert counts.max() - counts.min() <= 1
    pooled = LogisticRegression(torch.tensor(X)[None], torch.tensor(y)[None], Zero())
    x = torch.randn(30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert problem.objective(x[None], StackedObserver()).item() == pytest.approx(
        pooled.objective(x, StackedObserver()).item(), rel=1e-13
    )


@pytest.mark.parametrize("nodes", [[0], [9, 2], [8, 9]], ids=str)
def test_nodes_with_fewer_patients_keep_their_weights_when_built_alone(nodes):
    family = BreastCancer()
    whole, part = family.sample([1, 2]), family.sample([1, 2], nodes)
    assert torch.equal(part.A, whole.at(nodes).A) and torch.equal(part.weights, whole.at(nodes).weights)


@pytest.mark.parametrize(("n", "N"), [(570, None), (10, 58), (570, 1)])
def test_more_patients_than_there_are_are_refused(n, N):
    with pytest.raises(InvalidInput, match="patients, but there are 569"):
        BreastCancer(n, N=N)


@pytest.mark.parametrize(("family", "d"), [(Census, 14), (BreastCancer, 30)])
def test_data_say_how_many_unknowns_there_are(family, d):
    assert family().d == d
    with pytest.raises(InvalidInput, match=f"d is {d + 1}, but these data have {d}"):
        family(d=d + 1)


def test_families_of_real_data_are_called_by_their_shape_and_have_published_steps():
    assert BSDSLasso().name == "bsds-lasso(10,200,10,0.05)"
    assert Census().name == "census(10,14,100,0.1)"
    assert BreastCancer().name == "breast-cancer(10,30,57,0.01)"
    assert published("prox-ed", BSDSLasso()) == {"gamma": 0.05} and published("prox-dgd", Census()) == {"gamma": 2.0}


# The real ones


@pytest.fixture
def real(monkeypatch, tmp_path_factory) -> None:
    if not small.REAL.is_dir():
        pytest.skip("the real data sets are not beside this repository")
    monkeypatch.setenv("MILODO_DATA", str(small.REAL))
    monkeypatch.setenv("MILODO_CACHE", str(tmp_path_factory.getbasetemp() / "real"))
    small.learn_little(monkeypatch)


@pytest.mark.parametrize("family", [BSDSLasso(4, 60, 9), Census(), BreastCancer()], ids=lambda family: family.name)
@pytest.mark.parametrize("purpose", ["test", "training"])
def test_optima_on_real_data_are_certified(real, family, purpose):
    problem = family.sample(instance_seeds(purpose, 3))
    x, observer = optimum(problem).x, StackedObserver()
    assert problem.certificate(x, observer).max() < 1e-10
    assert (x != 0).any(-1).all() and (x == 0).any(-1).all()  # neither nothing nor everything


@pytest.mark.parametrize("family", [BSDSLasso(4, 60, 9), Census()], ids=lambda family: family.name)
def test_slices_of_real_instances_are_the_rows_of_the_whole(real, family):
    whole, nodes = family.sample([5, 6]), [3, 1]
    part = family.sample([5, 6], nodes)
    assert torch.equal(part.A, whole.A[:, nodes]) and torch.equal(part.b, whole.b[:, nodes])
    assert torch.equal(whole.b, family.sample([5, 6]).b)
