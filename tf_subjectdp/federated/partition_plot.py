# SPDX-License-Identifier: Apache-2.0
"""The picture of who has how much in which silo. matplotlib is imported when it is drawn.

Knows ids and silo numbers, see `partition`; NumPy, and matplotlib by way of `tf_subjectdp.plots`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_subjectdp import plots
from tf_subjectdp.federated.partition import numbered_silos
from tf_subjectdp.sampling import encode_ids
from tf_subjectdp.sampling._checks import positive_int

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# More names than this cannot be read along an axis: silos are then numbered.
_MOST_NAMES = 32
# Names longer than this would be longer than the picture is high.
_MOST_LETTERS = 24


def plot_partition(
    subject_ids: Any,
    silo: Any,
    names: Sequence[Any] | None = None,
    *,
    ax: Axes | None = None,
    most_subjects: int = 200,
) -> Axes:
    """Draws which share of each subject's items is in which silo.

    One row of the picture is a subject, one column a silo; white is none. Subjects are sorted by their
    largest silo (the first of equals), then by how many items they have there, most on top: blocks
    down the diagonal mean that people keep to one silo, a grey field that they are in all. No subject is
    named, but each is drawn, so the picture is not for release, and says so.

    Args:
      subject_ids: one id a row, shape [n_rows], see `encode_ids`.
      silo: integers [n_rows], the silo of each row, from `partition`.
      names: what the silos are called, one each, which also says how many there are; None numbers
        them from 0 to the largest that has rows.
      ax: where to draw; default a new figure.
      most_subjects: of more subjects only so many are drawn, evenly picked from the sorted ones, the
        first and the last included. The title counts all of them.

    Returns:
      The axes.

    Raises:
      ImportError: matplotlib is missing.
      ValueError, TypeError: as `partition.split`, and `most_subjects` that is not a whole number of
        at least 1.
    """
    most_subjects = positive_int("most_subjects", most_subjects)
    subjects, n_subjects = encode_ids(subject_ids)
    codes, called = numbered_silos(silo, subjects.size, names)
    pairs, counts = np.unique(subjects * len(called) + codes, return_counts=True)
    owner, place = np.divmod(pairs, len(called))
    sorted_subjects = _sorted_subjects(owner, place, counts)
    shown = sorted_subjects[_evenly(n_subjects, most_subjects)]
    share = _shares(owner, place, counts, shown, len(called))

    axes = _new_axes(len(called)) if ax is None else ax
    image = axes.imshow(
        np.ma.masked_equal(share, 0.0),
        aspect="auto",
        interpolation="nearest",
        cmap="viridis_r",
        vmin=0.0,
        vmax=float(share.max()),
    )
    bar = axes.figure.colorbar(image, ax=axes)
    bar.set_label("share of the subject's items (white: none)")
    _label_silos(axes, called)
    picked = (
        "" if len(shown) == n_subjects else f" ({len(shown):,} of {n_subjects:,}, evenly picked)"
    )
    axes.set_ylabel(f"subjects, by their largest silo{picked}")
    axes.set_yticks([])
    axes.set_title(
        f"{n_subjects:,} subjects in {len(called):,} silos, each in {pairs.size / n_subjects:.3g} on "
        "average\nread from the data: not for release",
        fontsize="medium",
    )
    return axes


def _sorted_subjects(owner: np.ndarray, place: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The subjects by the number of their largest silo, then by their items there, most first.

    `owner` is sorted, and for equal owners `place` is.
    """
    by_count = np.lexsort((place, -counts, owner))
    largest = by_count[np.unique(owner, return_index=True)[1]]
    return np.lexsort((-counts[largest], place[largest]))


def _evenly(n: int, most: int) -> np.ndarray:
    return np.arange(n) if n <= most else np.linspace(0, n - 1, most).round().astype(np.int64)


def _shares(owner, place, counts, shown, n_silos) -> np.ndarray:
    """float64 [shown, silos]: each row adds up to 1."""
    row = np.full(owner[-1] + 1, -1)
    row[shown] = np.arange(shown.size)
    drawn = row[owner] >= 0
    table = np.zeros((shown.size, n_silos))
    table[row[owner[drawn]], place[drawn]] = counts[drawn]
    return table / table.sum(axis=1, keepdims=True)


def _new_axes(n_silos: int) -> Axes:
    width = min(max(5.0, 3.0 + 0.3 * n_silos), 9.0)
    return plots._pyplot().subplots(figsize=(width, 5.5), layout="constrained")[1]


def _label_silos(axes: Axes, called: tuple[Any, ...]) -> None:
    numbered = called == tuple(range(len(called)))
    if numbered or len(called) > _MOST_NAMES:
        axes.set_xlabel("silo" if numbered else "silo, by number")
        axes.xaxis.get_major_locator().set_params(integer=True)
        return
    texts = [str(name) for name in called]
    texts = [t if len(t) <= _MOST_LETTERS else t[: _MOST_LETTERS - 1] + "…" for t in texts]
    level = sum(len(text) + 2 for text in texts) < 60
    axes.set_xticks(range(len(called)), texts, rotation=0 if level else 90)
    axes.set_xlabel("silo")
