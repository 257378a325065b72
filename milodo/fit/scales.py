"""Whether a column is in the same units at every site: a site whose numbers are typically a hundred times those of the others is
named, with the column and the factor.

Sites compare what they know already first: each sees how large its columns are beside the pooled data, and tells one number,
whether any of them looks odd. Only if one does the logarithms of typical sizes and of standard deviations are summed, column by
column, and only sites that are odd beside the mean of the others tell which column it is, and by how much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from milodo.errors import shortened
from milodo.fit.pooled import Scaling, power
from milodo.network import Network, Observer

ODD = 100.0
"""Times the typical size of the other sites (their geometric mean), or a part of it, from which a column is odd."""
CLEAR = 0.75
"""Of how odd another site is in the same column, on a logarithmic scale: who is less so is not told."""
SAMPLE = 1 << 20
"""Numbers of a site that are looked at, at most: typical sizes need no more."""
FEWEST = 101
"""Rows that are looked at, if there are as many, however many columns there are."""


@dataclass(frozen=True)
class OddScale:
    """One column of one site."""

    node: int
    column: int
    factor: float
    """Its typical size over that of the other sites, or its standard deviation over theirs, whichever is nearer to 1."""
    columns: int
    """Of this site that are odd; this one is so the most."""

    def sentence(self, sites: Sequence[str], columns: Sequence[str]) -> str:
        site = sites[self.node] if sites else f"site {self.node}"
        times = f"{self.factor:,.3g} times as large" if self.factor > 1 else f"{1 / self.factor:,.3g} times as small"
        more = f" (and so are {self.columns - 1} more of its columns, by less)" if self.columns > 1 else ""
        return (
            f"column {shortened(columns[self.column], 40)!r} is typically {times} at {site} as at the other sites{more}. "
            "Is it in the same units?"
        )


@torch.no_grad()
def odd_scales(
    features: Sequence[Tensor], scaled: Scaling, net: Network, observer: Observer, weights: Sequence[Tensor] | None = None
) -> tuple[OddScale, ...]:
    """The most odd column of each site that has one, the same at every process."""
    n = net.topology.n
    if n == 1:
        return ()
    counted = features if weights is None else [X[s > 0] for X, s in zip(features, weights, strict=True)]
    rows = [_sampled(X) for X in counted]
    rows = rows if scaled.columns is None else [power(X, -scaled.columns) for X in rows]
    varies = torch.stack([X.ne(X[:1]).any(0) if len(X) else X.new_zeros(X.shape[1], dtype=torch.bool) for X in rows])
    pooled = (scaled.scale.square() + scaled.mean.square()).sqrt()
    own = torch.stack([X.square().mean(0).sqrt() if len(X) else X.new_zeros(X.shape[1]) for X in rows]) / pooled
    # A column that is ODD times as large at one site is √ODD times the pooled size there, or less than 1/√ODD of it elsewhere.
    looks = varies & ((own > math.sqrt(ODD) / 1.5) | (own < 1.5 / math.sqrt(ODD)))
    if float(observer.mean(looks.any(-1, keepdim=True).double(), dim=-2)) == 0:
        return ()
    sizes = torch.stack([_sizes(X) for X in rows])
    varies &= (sizes > 0).all(-2)
    factors = _over_others(sizes, varies, observer, n).unbind(-2)
    # In other units both are larger, or both smaller; where only the mean lies elsewhere, or only the spread is another, one is.
    factor = torch.where(factors[0] * factors[1] > 0, torch.minimum(*(each.abs() for each in factors)), 0.0) * factors[0].sign()
    worst = factor.abs().argmax(-1, keepdim=True)
    many = (factor.abs() >= math.log(ODD)).sum(-1, keepdim=True)
    told = torch.zeros(net.n, n, 3, dtype=torch.float64)
    told[range(net.n), list(net.nodes)] = torch.cat((many, worst, factor.gather(-1, worst)), dim=-1).double()
    found = (observer.mean(told.flatten(1), dim=-2) * n).view(n, 3).tolist()
    odd = [(node, round(column), log, round(count)) for node, (count, column, log) in enumerate(found) if round(count)]
    return tuple(
        OddScale(node, column, math.exp(log), count)
        for node, column, log, count in odd
        # Beside a site that is far off, others look odd as well, by less.
        if not any(other == column and abs(log) < CLEAR * abs(further) for _, other, further, _ in odd)
    )


def _over_others(sizes: Tensor, varies: Tensor, observer: Observer, n: int) -> Tensor:
    """The logarithms of sizes [n, k, d] over the geometric mean of the other sites' at which a column varies; 0 where none is."""
    varies = varies.unsqueeze(-2)
    logs = torch.where(varies, sizes.log(), 0.0)
    told = torch.cat((logs, varies.double()), dim=-2)
    sums = (observer.mean(told.flatten(1), dim=-2) * n).view(told.shape[1:])
    others = sums[-1].round() - varies.double()
    return torch.where(varies & (others > 0), logs - (sums[:-1] - logs) / others.clamp(min=1), 0.0)


def _sampled(X: Tensor) -> Tensor:
    """Rows spread evenly over all of them."""
    most = max(FEWEST, SAMPLE // X.shape[1])
    return X[:: -(-len(X) // most)] if len(X) > most else X


def _sizes(X: Tensor) -> Tensor:
    """Of each column the median of |x| over numbers that are not 0, and the standard deviation [2, d]; 0 where there is none."""
    if not len(X):
        return X.new_zeros(2, X.shape[1])
    typical = torch.where(X == 0, torch.nan, X.abs()).nanmedian(0).values.nan_to_num(nan=0.0)
    return torch.stack((typical, X.std(0, correction=0)))
