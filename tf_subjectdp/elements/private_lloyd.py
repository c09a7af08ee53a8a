# SPDX-License-Identifier: Apache-2.0
"""k-means on PRIVATE features, paid for: Lloyd's algorithm with Gaussian noise, at subject level.

Knows features [rows, width] and who each row is of; NumPy and SciPy alone. One iteration, with public
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

import numpy as np
from scipy import sparse
from scipy.spatial import distance

from tf_subjectdp.elements.nearest import nearest
from tf_subjectdp.noise_numpy import FreshDraws

# A hair below 1, above the rounding of the norms.
_BALL = 1.0 - 1e-9
# Points drawn for each of the first centres.
_CANDIDATES = 16


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
