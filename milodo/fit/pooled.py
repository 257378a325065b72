"""One regression or classification whose samples lie at several sites: the objective is that of all samples together.

It is solved in variables of its own, z = s x, which changes the problem's units and nothing else: columns are divided by their
pooled size s and centred where an intercept takes up the shift, and the penalty is r(z / s).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from milodo.errors import InvalidInput
from milodo.network import Network
from milodo.network.consensus import average, maximum
from milodo.problems.lasso import LeastSquares
from milodo.problems.logistic import LogisticRegression
from milodo.problems.moments import Moments, moments_of
from milodo.problems.ragged import Origin, ragged
from milodo.problems.regularizers import L1, ElasticNet, Regularizer, Rescaled, UnpenalizedIntercept, Zero
from milodo.problems.rows import Rows, is_large, rows_at_once
from milodo.problems.sampled import Sampled
from milodo.problems.softmax import Softmax
from milodo.problems.weighed import NO_BEND, NO_SLOPE, Weighed
from milodo.solvers.triangles import pack
from milodo.types import NodeTensor

LOSSES: dict[str, type[Sampled]] = {"squared": LeastSquares, "logistic": LogisticRegression, "softmax": Softmax}
FAR, USUAL, STEP = 2.0**-200, 192, 64
"""Numbers below FAR or above 1/FAR ask for other units, of powers of two whose exponent STEP divides; then those whose exponent
is within USUAL keep theirs."""
BESIDE = 2.0**-100
"""The size of a column that is nothing beside the root of its penalty's curvature."""
EXTREME = 2.0**60
"""Samples of a site that asks for other units: more than there are."""
MANY = 4
"""Rows for each column from which on products of columns are kept: they are at most a quarter of the data."""
ROUNDING = 1e-9
"""More than what rounding adds to the size of a column."""
Total = Callable[[NodeTensor], NodeTensor]
"""Σ over all nodes, at every node held here."""


def total_of(net: Network, *, reliable: bool) -> Total:
    """Over the spanning tree where links hold, exactly; else by gossip, to rounding. The very same numbers at every node: sites
    that scaled by different ones would solve different problems, and decide differently."""
    return net.total if reliable else lambda x: maximum(net, net.topology.n * average(net, x))


@dataclass(frozen=True)
class Scaling:
    """x ↦ (x - mean) / scale, feature by feature, as this process's nodes learned it [n, d], of x in units in which they are
    neither very large nor very small: 2^columns for features and 2^response for targets, which is 1 but for numbers whose squares
    are none."""

    mean: NodeTensor
    scale: NodeTensor
    samples: NodeTensor
    """Of all sites together [n, 1]."""
    weight: NodeTensor
    """Of all samples together [n, 1]: how many there are, unless they were weighed."""
    target: NodeTensor
    """The mean of the targets [n, 1]; of k classes their shares [n, k]."""
    constant: NodeTensor
    """Which features are, as far as sums can tell [n, d]; they count for nothing."""
    own: Sequence[Moments | None] = ()
    """Of the large nodes held here, what one pass over their rows found; nobody is told of it."""
    columns: Tensor | None = None
    """Exponents [d]; all 0 unless given."""
    response: int = 0

    @property
    def size(self) -> Tensor:
        """Of each feature in the units of the data [d]."""
        return self.scale[0] if self.columns is None else power(self.scale[0], self.columns)

    def against(self, l2: float) -> Scaling:
        """The same, with features that are nothing beside their penalty l2/2 ‖x‖² in units of that."""
        tiny = self.size < BESIDE * math.sqrt(l2)
        if not bool(tiny.any()):
            return self
        raised = torch.full_like(self.scale[0], math.sqrt(l2))
        raised = raised if self.columns is None else power(raised, -self.columns)
        return replace(self, scale=torch.where(tiny, raised, self.scale), own=[None] * len(self.own))

    def penalty(self, l1: float, l2: float = 0.0, *, standardise: bool) -> Regularizer:
        """l1 ‖x‖₁ + l2/2 ‖x‖² of features in the units of the data, or of standardised ones, as the problem sees it."""
        size = self.size.repeat_interleave(self.target.shape[-1])
        if standardise or (not l1 and not l2):
            return penalty(math.ldexp(l1, -self.response), None, l2)
        lam, mu = power(l1 / size, torch.tensor(-self.response)), (math.sqrt(l2) / size).square()
        if not bool(torch.isfinite(lam).all()):
            raise InvalidInput(
                f"a penalty of {l1:g} beside a column whose numbers are about {float(size.min()):.1e} is more than 64 bits hold. "
                "Give that column in larger units, or standardise."
            )
        lost = ((lam <= NO_SLOPE) & (mu <= NO_BEND)).any()  # beside rounding
        return Weighed(lam, mu) if self.columns is not None or bool(lost) else penalty(l1, size, l2)


def scaling(
    features: Sequence[Tensor], targets: Sequence[Tensor], total: Total, *, centre: bool, weights: Sequence[Tensor] | None = None
) -> Scaling:
    """Counts, means and sizes of the pooled data: a site tells its neighbours sums, never samples.

    Sizes in a second pass around the mean: the difference of two large sums would lose half of their digits. Columns that are not
    centred have their size around 0. A sample of weight 2 counts as two. If a site has numbers whose squares are none, all agree
    upon units first.
    """
    each: Sequence[Tensor | None] = weights or [None] * len(features)
    own = [_moments(X, y, s) for X, y, s in zip(features, targets, each, strict=True)]
    sums = []
    for X, y, s, m in zip(features, targets, each, own, strict=True):
        told = torch.cat((X.new_tensor([len(X)]), *([] if s is None else [s.sum().reshape(1)]), _sums(X, y, s, m)))
        if _is_extreme(X, y, m):
            told = torch.zeros_like(told)
            told[0] = EXTREME
        sums.append(told)
    d, counts = features[0].shape[1], 1 if weights is None else 2
    count, means, target = total(torch.stack(sums)).split((counts, d, len(sums[0]) - counts - d), dim=-1)
    samples = count[..., :1].round()
    if bool((samples >= EXTREME / 2).any()):
        columns, response = _exponents(features, targets, total)
        inner = scaling(
            [power(X, -columns) for X in features], [power(y, torch.tensor(-response)) for y in targets], total, centre=centre,
            weights=weights,
        )  # fmt: skip
        return replace(inner, columns=columns, response=response)
    weight = samples if weights is None else count[..., 1:]
    if not bool((weight > 0).all()):
        raise InvalidInput("the samples of all sites together weigh nothing, so there is nothing to fit. Give weights above 0.")
    mean = means / weight
    around = mean if centre else torch.zeros_like(mean)
    squares = [_squares(X, c, s, m) for X, c, s, m in zip(features, around, each, own, strict=True)]
    scale = (total(torch.stack(squares)) / weight).clamp(min=0).sqrt()
    nothing = 10 * torch.finfo(torch.float64).eps * mean.abs() * samples.sqrt()  # what rounding leaves of a constant column
    constant = scale <= nothing * centre
    return Scaling(around, torch.where(constant, 1.0, scale), samples, weight, target / weight, constant, own)


def _is_extreme(X: Tensor, y: Tensor, known: Moments | None) -> bool:
    """Whether a site has numbers whose squares, or the sums of those, may be too large or too small."""
    if known is not None:
        size = (known.products.diagonal() / known.weight + known.mean.square()).clamp(min=0).sqrt()
        if bool(((size >= FAR) & (size <= 1 / FAR)).all()):
            return False
    largest = torch.cat([_largest(values) for values in (X, y)])
    fine = (largest == 0) | ((largest >= FAR) & (largest <= 1 / FAR)) | ~torch.isfinite(largest)
    return not bool(fine.all())


def _largest(values: Tensor) -> Tensor:
    """|·| of each column."""
    values = values.unsqueeze(-1) if values.ndim == 1 else values
    if not len(values):
        return torch.zeros(values.shape[1], dtype=torch.float64)
    return torch.maximum(values.amax(0), -values.amin(0)).double()


def _exponents(features: Sequence[Tensor], targets: Sequence[Tensor], total: Total) -> tuple[Tensor, int]:
    """Of the units of features and targets, multiples of STEP, the same everywhere: one sum that counts sites by how large their
    largest number is. 0 where it is neither very large nor very small."""
    places = torch.arange(-1088, 1089, STEP)
    told = []
    for X, y in zip(features, targets, strict=True):
        largest = torch.cat((_largest(X), _largest(y).amax().reshape(1)))
        exponent = torch.frexp(largest).exponent.unsqueeze(-1)
        near = (exponent > places - STEP) & (exponent <= places) & (largest > 0).unsqueeze(-1)
        told.append(near.double().flatten())
    found = total(torch.stack(told))[0].view(-1, len(places)) > 0.5
    most = torch.where(found, places, places[0] - 1).amax(-1)
    most = torch.where((most < places[0]) | (most.abs() <= USUAL), 0, most)
    return most[:-1], int(most[-1])


def power(x: Tensor, exponent: Tensor) -> Tensor:
    """x · 2^exponent, in two steps: either factor is a number, though their product may be none."""
    half = torch.div(exponent, 2, rounding_mode="floor")
    return x * torch.exp2(half.double()) * torch.exp2((exponent - half).double())


def _moments(X: Tensor, y: Tensor, weights: Tensor | None) -> Moments | None:
    """Of a large site with many more rows than columns: all that a fit asks of it before its first step, in one pass."""
    columns = X.shape[1] + 1
    if not is_large(len(X), columns) or len(X) < MANY * columns:
        return None
    found = moments_of(X, y, weights, rows_at_once(columns))
    return found if found.finite and float(found.weight) > 0 else None


def _sums(X: Tensor, y: Tensor, weights: Tensor | None, known: Moments | None) -> Tensor:
    """Of features and targets, a number for each column."""
    return torch.cat((_sum(X, weights), _sum(y, weights))) if known is None else known.weight * known.mean


def _sum(values: Tensor, weights: Tensor | None) -> Tensor:
    return (values.sum(0) if weights is None else weights @ values).reshape(-1)


def _squares(X: Tensor, around: Tensor, weights: Tensor | None, known: Moments | None) -> Tensor:
    """Σ (x - around)² of each column, a block of rows at a time."""
    if known is not None:
        return known.around(torch.cat((around, known.mean[len(around) :]))).diagonal()[: len(around)].clamp(min=0)
    step = rows_at_once(X.shape[1])
    total = torch.zeros_like(around)
    for first in range(0, len(X), step):
        rows = slice(first, first + step)
        total += _sum((X[rows] - around).square_(), None if weights is None else weights[rows])
    return total


def penalty(l1: float, scale: Tensor | None, l2: float = 0.0) -> Regularizer:
    """l1 ‖x‖₁ + l2/2 ‖x‖², in the variables z = scale · x; of z itself where there is no scale."""
    if not l1 and not l2:
        return Zero()
    reg = ElasticNet(l1, l2) if l2 else L1(l1)
    return reg if scale is None else Rescaled(reg, scale, torch.ones((), dtype=scale.dtype))


def pooled_problem(
    loss: str, features: Sequence[Tensor], targets: Sequence[Tensor], scaled: Scaling, reg: Regularizer,
    *, n: int, intercept: bool, weights: Sequence[Tensor] | None = None,
) -> Sampled:  # fmt: skip
    """(1/n) Σ_i f_i + r = (1/S) Σ s ℓ over all samples of the n sites + r, the intercepts last and spared.

    f_i = (n/S) Σ_j s_ij ℓ(a_ijᵀx, b_ij) with weights s, all 1 unless given, whose sum is S. Large sites are not copied, and small
    ones filled up to a common size with samples of weight 0 (milodo/problems/ragged.py). Targets are centred where there is an
    intercept and the loss allows it.
    """
    known = {i: own for i, own in enumerate(scaled.own) if own is not None}
    if scaled.columns is not None:
        features = [power(X, -scaled.columns) for X in features]
        targets = [power(y, torch.tensor(-scaled.response)) for y in targets]
    scale = torch.where(scaled.constant, torch.inf, scaled.scale)  # what rounding left of a constant column is nothing, too
    rows = Rows(features, scaled.mean, scale, intercept=intercept, finite=known)
    samples = rows.length if rows.together is None else rows.together.shape[1]
    b = [y - t if intercept and LOSSES[loss].translates else y.double() for y, t in zip(targets, scaled.target, strict=True)]
    each = [torch.ones(len(y), dtype=torch.float64) for y in targets] if weights is None else weights
    shares = [n * samples / total * s for total, s in zip(scaled.weight, each, strict=True)]
    reg = UnpenalizedIntercept(reg, scaled.target.shape[-1]) if intercept else reg
    held, placed = rows.place(b), rows.place(shares)
    if rows.together is None:
        centred = intercept and LOSSES[loss].translates
        origins = {i: _origin(own, scaled, i, n, intercept=intercept, centred=centred) for i, own in known.items()}
        problem: Sampled = ragged(LOSSES[loss])(rows, held, reg, placed, origins)
    else:
        sizes = rows.together.shape[:2]
        problem = LOSSES[loss](rows.together, held[0].unflatten(0, sizes), reg, placed[0].unflatten(0, sizes))
    problem.column = 1 + ROUNDING  # what columns were scaled to; a constant one is 0
    return problem


def _origin(own: Moments, scaled: Scaling, node: int, n: int, *, intercept: bool, centred: bool) -> Origin:
    """Products of the scaled columns with each other and with the targets, from those of the columns as they are."""
    d, target = scaled.mean.shape[-1], scaled.target[node]
    centre = torch.cat((scaled.mean[node], target if centred else torch.zeros_like(target)))
    scale = torch.cat((torch.where(scaled.constant[node], torch.inf, scaled.scale[node]), torch.ones_like(target)))
    products, away = own.around(centre) / scale / scale.unsqueeze(-1), (own.mean - centre) / scale
    if intercept:  # a column of ones, between features and targets
        row = torch.cat((away[:d], torch.ones(1, dtype=away.dtype), away[d:])) * own.weight
        wide = products.new_zeros(len(row), len(row))
        kept = torch.arange(len(row)) != d
        wide[kept.unsqueeze(-1) & kept] = products.flatten()
        wide[d], wide[:, d] = row, row
        products = wide
    share, columns = n / scaled.weight[node], d + intercept
    gram, cross = share * products[:columns, :columns], share * products[:columns, columns:]
    return Origin(pack(gram), cross.squeeze(-1))
