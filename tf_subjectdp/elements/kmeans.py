# SPDX-License-Identifier: Apache-2.0
"""k-means on features [rows, width], public or private: arrays in, centres out.

NEAREST. A row's answer does not depend on the rows beside it, and is the same in NumPy and TensorFlow:
distances are sums of squared differences (no |x|^2 - 2 x c + |c|^2, which cancels and whose rounding
follows the size of the batch), and distances that agree to 2^-30 count as tied, the lowest number
wins. The rounding of either library is below 2^-31 up to a width of two million.

PUBLIC features: k-means++ seeds, Lloyd's iterations by SciPy's `kmeans2`, the best of some starts.
SciPy's own k-means++ computes all distances anew for every seed, O(K^2 rows width): 5 s for 100 seeds
among 10,000 rows of 200, where adding the newest seed's distances takes 0.2 s.

PRIVATE features: Lloyd's algorithm with Gaussian noise, at subject level. One iteration, with public
centres c_1..c_K, radius R and b^2 = 1 / (1 + sqrt(width)), a^2 = 1 - b^2:

    x_i   <-  x_i min(1, R / |x_i|)
    v_u   <-  (a S_uk / R, b n_uk)_k       S_uk, n_uk: sum and number of subject u's rows nearest to c_k
    v_u   <-  v_u min(1, 1 / |v_u|)
    (s,n) <-  sum_u v_u + N(0, sigma^2 I)
    c_k   <-  (R s_k / a) / max(n_k / b, 1), moved back into the ball of radius R

Proof. |v_u| <= 1 whatever the subject's data, and however many rows it has: so no bound on the rows of
a subject is needed. Given the centres before it, adding or removing a subject moves the sum by v_u
alone, at most 1; replacing the subject's data, or one of its elements, by at most 2. So an iteration is
a Gaussian of noise multiplier sigma; what follows it is post-processing, the first centres are drawn
without data, and iterations compose adaptively. A row alone has |v_u|^2 <= a^2 + b^2 = 1; the rows of
a subject who has more weigh less each, the same in sums and counts. a and b make the error of a centre
small: `width` noisy sums against one noisy count.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse
from scipy.cluster import vq
from scipy.spatial import distance

from tf_subjectdp.noise_numpy import FreshDraws

if TYPE_CHECKING:
    import tensorflow as tf

#: Squared distances within this factor of the smallest are tied.
TIE = 1.0 + 2.0**-30
#: Cells of float64 at once, 32 MB.
CELLS = 2**22
# Lloyd's iterations at once, after which it is seen whether they still help.
_AT_ONCE = 5
_GAIN = 1e-4
_REPAIRS = 10
# A hair below 1, above the rounding of the norms.
_BALL = 1.0 - 1e-9
# Points drawn for each of the first centres.
_CANDIDATES = 16


def nearest(rows: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nearest centre of each row, in bounded memory.

    Args:
      rows: float64 [rows, width], finite.
      centres: float64 [clusters, width].

    Returns:
      `(ids, squares)`: int64 [rows], ties to the lowest number; float64 [rows], the smallest squared
      distance.
    """
    ids = np.empty(len(rows), np.int64)
    squares = np.empty(len(rows))
    size = max(1, CELLS // max(len(centres), centres.shape[1]))
    for low in range(0, len(rows), size):
        piece = distance.cdist(rows[low : low + size], centres, "sqeuclidean")
        least = piece.min(axis=1)
        squares[low : low + size] = least
        ids[low : low + size] = np.argmax(piece <= least[:, None] * TIE, axis=1)
    return ids, squares


def tensor_nearest(rows: tf.Tensor, centres: np.ndarray) -> tf.Tensor:
    """As the ids of `nearest`, for a float64 tensor [rows, width]: int64 [rows]."""
    import tensorflow as tf

    squares = tf.map_fn(
        lambda centre: tf.reduce_sum(tf.math.squared_difference(rows, centre), axis=1),
        tf.constant(centres),
        fn_output_signature=tf.TensorSpec([None], tf.float64),
    )
    tied = squares <= tf.reduce_min(squares, axis=0) * TIE
    numbers = tf.range(len(centres), dtype=tf.int64)[:, None]
    # tf.argmax does not say which of several maxima it takes
    return tf.reduce_min(tf.where(tied, numbers, tf.constant(len(centres), tf.int64)), axis=0)


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


def private_kmeans(
    rows: np.ndarray,
    subjects: np.ndarray,
    n_clusters: int,
    *,
    noise_multiplier: float,
    radius: float,
    iterations: int,
    rng: np.random.Generator | FreshDraws,
) -> np.ndarray:
    """`iterations` noisy iterations from centres that are drawn without data.

    A cluster that has no rows gets a centre of noise, anywhere in the ball (putting it beside a large
    cluster instead, which would be post-processing, was tried on digits and was no better).

    Args:
      rows: float64 [rows, width], finite.
      subjects: int64 [rows], from 0.
      n_clusters: K.
      noise_multiplier: sigma, at least 0.
      radius: R, public.
      iterations: at least 1.
      rng: draws everything; a `Generator` is for tests: NOT PRIVATE.

    Returns:
      float64 [n_clusters, width], in the ball of `radius`.
    """
    rows = into_ball(rows, radius)
    width = rows.shape[1]
    a, b = scales(width)
    centres = first_centres(n_clusters, width, radius, rng)
    for _ in range(iterations):
        ids, _ = nearest(rows, centres)
        noisy = total_contribution(rows, subjects, ids, n_clusters, radius)
        noisy = noisy + noise_multiplier * rng.standard_normal(noisy.shape)
        counts = noisy[:, width] / b
        centres = noisy[:, :width] * (radius / a) / np.maximum(counts, 1.0)[:, None]
        centres = into_ball(centres, radius)
    return centres


def into_ball(rows: np.ndarray, radius: float) -> np.ndarray:
    """The rows, those longer than `radius` shortened to it: float64 [rows, width]."""
    scaled = rows / radius
    norms = np.sqrt(np.einsum("ij,ij->i", scaled, scaled))
    return rows * (1.0 / np.maximum(norms, 1.0))[:, None]


def scales(width: int) -> tuple[float, float]:
    """`(a, b)`: what the sums over R, and the counts, are multiplied by; a^2 + b^2 = 1."""
    count_share = 1.0 / (1.0 + np.sqrt(width))
    return float(np.sqrt(1.0 - count_share)), float(np.sqrt(count_share))


def total_contribution(
    rows: np.ndarray, subjects: np.ndarray, ids: np.ndarray, n_clusters: int, radius: float
) -> np.ndarray:
    """The sum of the subjects' vectors v_u, before the noise.

    Args:
      rows: float64 [rows, width], in the ball of `radius`.
      subjects: int64 [rows], the subject of each row, from 0.
      ids: int64 [rows], the cluster of each row.
      n_clusters: K.
      radius: R.

    Returns:
      float64 [n_clusters, width + 1]: sums times a / R, and in the last column counts times b.
    """
    a, b = scales(rows.shape[1])
    pairs, pair_of_row = np.unique(subjects * n_clusters + ids, return_inverse=True)
    n_rows = len(rows)
    ones = np.ones(n_rows)
    gather = sparse.csr_matrix((ones, (pair_of_row, np.arange(n_rows))), (len(pairs), n_rows))
    sums = (gather @ rows) * (a / radius)
    counts = np.bincount(pair_of_row, minlength=len(pairs)) * b
    subject, cluster = pairs // n_clusters, pairs % n_clusters
    squares = np.einsum("ij,ij->i", sums, sums) + counts**2
    norms = np.sqrt(np.bincount(subject, weights=squares))
    weights = np.minimum(1.0, _BALL / np.maximum(norms, _BALL))[subject]
    to_cluster = sparse.csr_matrix(
        (weights, (cluster, np.arange(len(pairs)))), (n_clusters, len(pairs))
    )
    return to_cluster @ np.column_stack([sums, counts])


def first_centres(
    n_clusters: int, width: int, radius: float, rng: np.random.Generator | FreshDraws
) -> np.ndarray:
    """Centres drawn without data, spread over the ball: each the furthest from those before it.

    Args:
      n_clusters: K.
      width: of a row.
      radius: R.
      rng: drawn from; the draws are public.

    Returns:
      float64 [n_clusters, width].
    """
    size = (_CANDIDATES * n_clusters, width)
    directions = rng.standard_normal(size)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    points = directions * radius * rng.random((size[0], 1)) ** (1.0 / width)
    chosen, squares = [0], np.full(size[0], np.inf)
    while len(chosen) < n_clusters:
        squares = np.minimum(
            squares, distance.cdist(points, points[chosen[-1:]], "sqeuclidean")[:, 0]
        )
        chosen.append(int(np.argmax(squares)))
    return points[chosen]
