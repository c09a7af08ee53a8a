# SPDX-License-Identifier: Apache-2.0
"""k-means on PUBLIC features: k-means++ seeds, Lloyd's iterations by SciPy, the best of some starts.

Knows features [rows, width]. SciPy's own k-means++ computes all distances anew for every seed,
O(K^2 rows width), which 100 clusters of images do not allow; here each seed adds its own distances.
"""

from __future__ import annotations

import warnings

import numpy as np
from scipy.cluster import vq
from scipy.spatial import distance

from tf_subjectdp.elements.nearest import nearest

# Lloyd's iterations at once, after which it is seen whether they still help.
_AT_ONCE = 5
_GAIN = 1e-4
_REPAIRS = 10


def kmeans(
    rows: np.ndarray, n_clusters: int, restarts: int, iterations: int, rng: np.random.Generator
) -> tuple[np.ndarray, float]:
    """The centres of the lowest inertia among `restarts` starts.

    A cluster left empty by Lloyd's iterations moves to the row that is furthest from its own centre,
    and the iterations go on.

    Args:
      rows: float64 [rows, width], finite, public.
      n_clusters: K; the rows must have as many different ones.
      restarts: starts, at least 1.
      iterations: most iterations of Lloyd's algorithm a start, at least 1; fewer where five of them
        lower the inertia by less than one in ten thousand.
      rng: drawn from.

    Returns:
      `(centres, inertia)`: float64 [n_clusters, width], and the sum of the rows' squared distances to
      their centres.

    Raises:
      ValueError: fewer different rows than clusters.
    """
    # Moved and scaled, so that SciPy's |x|^2 - 2 x c + |c|^2 neither cancels nor overflows.
    middle = rows.mean(axis=0)
    moved = rows - middle
    scale = 2.0 ** np.ceil(np.log2(max(np.abs(moved).max(), 1e-100)))
    moved /= scale
    best, lowest = None, np.inf
    for _ in range(restarts):
        centres = seeds(moved, n_clusters, rng)
        centres, inertia = _settled(moved, centres, iterations)
        if inertia < lowest:
            best, lowest = centres, inertia
    return best * scale + middle, float(lowest * scale * scale)


def seeds(rows: np.ndarray, n_clusters: int, rng: np.random.Generator) -> np.ndarray:
    """k-means++ (Arthur and Vassilvitskii 2007): each row with probability of its squared distance.

    Returns:
      float64 [n_clusters, width], different rows of `rows`.

    Raises:
      ValueError: fewer different rows than clusters.
    """
    chosen = [int(rng.integers(len(rows)))]
    squares = np.full(len(rows), np.inf)
    while len(chosen) < n_clusters:
        newest = rows[chosen[-1]][None]
        squares = np.minimum(squares, distance.cdist(rows, newest, "sqeuclidean")[:, 0])
        sums = np.cumsum(squares)
        if not sums[-1] > 0.0:
            raise ValueError(
                f"n_clusters is {n_clusters}, and there are only {len(chosen)} different rows of "
                f"features: pass n_clusters of at most {len(chosen)}, or more data"
            )
        # side="right", so that a row of distance 0 is never drawn
        place = np.searchsorted(sums, rng.random() * sums[-1], side="right")
        chosen.append(int(min(place, np.flatnonzero(squares)[-1])))
    return rows[chosen]


def _settled(rows: np.ndarray, centres: np.ndarray, iterations: int) -> tuple[np.ndarray, float]:
    done = min(_AT_ONCE, iterations)
    centres, inertia = _iterated(rows, centres, done)
    while done < iterations:
        before = inertia
        more = min(_AT_ONCE, iterations - done)
        centres, inertia = _iterated(rows, centres, more)
        done += more
        if not inertia < before * (1.0 - _GAIN):
            break
    ids, squares = nearest(rows, centres)
    for _ in range(_REPAIRS):
        empty = np.flatnonzero(np.bincount(ids, minlength=len(centres)) == 0)
        if not empty.size:
            break
        centres[empty[0]] = rows[np.argmax(squares)]
        centres, _ = _iterated(rows, centres, _AT_ONCE)
        ids, squares = nearest(rows, centres)
    return centres, float(squares.sum())


def _iterated(rows: np.ndarray, centres: np.ndarray, times: int) -> tuple[np.ndarray, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of empty clusters, which are repaired here
        centres, _ = vq.kmeans2(rows, centres, iter=times, minit="matrix", check_finite=False)
    return centres, float((vq.vq(rows, centres, check_finite=False)[1] ** 2).sum())
