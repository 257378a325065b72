"""Rows of a data set, dealt to nodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milodo.errors import InvalidInput
from milodo.problems.splits import split

SPLITS = ("uniform", "label", "dirichlet(0.3)", "dirichlet(100)")
LABELS = np.random.default_rng(0).integers(0, 10, 1000)


@given(
    how=st.sampled_from(SPLITS), n=st.integers(1, 12), N=st.none() | st.integers(1, 50), classes=st.integers(1, 6),
    seed=st.integers(0, 9),
)  # fmt: skip
def test_nodes_get_rows_that_exist_and_nobody_else_has(how, n, N, classes, seed):
    labels = np.random.default_rng(seed).integers(0, classes, 600)
    parts = split(how, labels, n, N, seed=seed)
    sizes = [len(part) for part in parts]
    assert len(parts) == n and (sizes == [N] * n if N else max(sizes) - min(sizes) <= 1)
    rows = np.concatenate(parts)
    assert rows.min() >= 0 and rows.max() < 600 and len(np.unique(rows)) == len(rows) == (n * N if N else 600)


@pytest.mark.parametrize("how", SPLITS)
def test_the_seed_alone_decides(how):
    one, again, other = (split(how, LABELS, 5, 60, seed=seed) for seed in (1, 1, 2))
    assert all(map(np.array_equal, one, again)) and not all(map(np.array_equal, one, other))


def far_from_even(how: str, seed: int = 0) -> float:
    """Mean over nodes of the total variation between a node's labels and everybody's."""
    share = [np.bincount(LABELS[part], minlength=10) / len(part) for part in split(how, LABELS, 10, 90, seed=seed)]
    return float(np.abs(np.array(share) - np.bincount(LABELS) / len(LABELS)).sum(-1).mean() / 2)


def test_by_label_a_node_sees_few_labels_and_at_random_all():
    assert max(len(np.unique(LABELS[part])) for part in split("label", LABELS, 10, 90)) <= 3
    assert min(len(np.unique(LABELS[part])) for part in split("uniform", LABELS, 10, 90)) >= 8


def test_dirichlet_goes_from_one_label_to_a_random_deal_as_alpha_grows():
    seeds = range(5)
    far = [np.mean([far_from_even(f"dirichlet({alpha})", seed) for seed in seeds]) for alpha in ("0.05", "0.5", "5", "1e6")]
    assert far == sorted(far, reverse=True)
    assert far[-1] < 1.2 * np.mean([far_from_even("uniform", seed) for seed in seeds])


def test_part_of_a_node_is_like_all_of_it():
    """In the order of its rows there is no order of labels: the first half has as many labels as the second."""
    for part in split("label", LABELS, 2, 500):
        first, second = (np.bincount(LABELS[half], minlength=10) for half in np.array_split(part, 2))
        assert np.abs(first - second).max() < 40  # of 50 a label and half; sorted rows would differ by 100


@pytest.mark.parametrize("how", ["labels", "dirichlet", "dirichlet(0)", "dirichlet(-1)", "dirichlet(nan)", "dirichlet(x)", "", 3])
def test_other_words_get_a_sentence(how):
    with pytest.raises(InvalidInput, match="'uniform', 'label' or 'dirichlet"):
        split(how, LABELS, 5)


def test_more_rows_than_there_are_get_a_sentence():
    with pytest.raises(InvalidInput, match="need 1,010 samples, but there are only 1,000"):
        split("uniform", LABELS, 10, 101)
    with pytest.raises(InvalidInput, match="need 1,001 samples"):
        split("uniform", LABELS, 1001)
