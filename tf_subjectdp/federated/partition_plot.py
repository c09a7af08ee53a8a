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
# More letters than this in all names, and they are slanted.
_MOST_LETTERS_LEVEL = 48
_SHARE_TICKS = (0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
# Where the colours start, of 0..1 in matplotlib's Blues: paler ones could not be told from white.
_PALEST = 0.12


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
    largest silo (the first of equals), then by how many items they have there, most on top. Dark
    blocks down the diagonal on white: people keep to one silo; an even field: they are in all. The
    colours mean the same in every picture. No subject is named, but each is drawn, so the picture is
    not for release, and says so.

    Args:
      subject_ids: one id a row, shape [n_rows], see `encode_ids`.
      silo: integers [n_rows], the silo of each row, from `partition`.
      names: what the silos are called, one each, which also says how many there are; None numbers
        them from 0 to the largest that has rows.
      ax: where to draw; default a new figure.
      most_subjects: of more subjects only so many are drawn, evenly picked from the sorted ones. The
        title counts all of them.

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
    shown = _sorted_subjects(owner, place, counts)[_evenly(n_subjects, most_subjects)]

    pyplot = plots._pyplot()
    from matplotlib.colors import PowerNorm

    axes = _new_axes(pyplot, len(called)) if ax is None else ax
    image = axes.imshow(
        np.ma.masked_equal(_shares(owner, place, counts, shown, len(called)), 0.0),
        aspect="auto",
        interpolation="nearest",
        cmap=_colours(),
        # the root keeps a share of 1 % apart from one of 5 %
        norm=PowerNorm(0.5, vmin=0.0, vmax=1.0),
    )
    bar = axes.figure.colorbar(image, ax=axes, ticks=_SHARE_TICKS)
    bar.ax.set_yticklabels([f"{tick:g}" for tick in _SHARE_TICKS])
    bar.set_label("share of the subject's items (white: none)")
    _label_silos(axes, called)
    drawn = "" if len(shown) == n_subjects else f" ({len(shown):,} of {n_subjects:,})"
    axes.set_ylabel(f"subjects, by their largest silo{drawn}")
    axes.set_yticks([])
    axes.set_title(
        f"{_count(n_subjects, 'subject')} in {_count(len(called), 'silo')}, a subject in "
        f"{pairs.size / n_subjects:.3g} on average\nread from the data: not for release",
        fontsize="medium",
    )
    return axes


def _sorted_subjects(owner: np.ndarray, place: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The subjects by the number of their largest silo, then by their items there, most first.

    Each pair of a subject (owner) and a silo (place) comes once, in the order of owners.
    """
    by_count = np.lexsort((place, -counts, owner))
    largest = by_count[np.unique(owner, return_index=True)[1]]
    return np.lexsort((-counts[largest], place[largest]))


def _evenly(n: int, most: int) -> np.ndarray:
    return np.arange(n) if n <= most else np.linspace(0, n - 1, most).round().astype(np.int64)


def _shares(
    owner: np.ndarray, place: np.ndarray, counts: np.ndarray, shown: np.ndarray, n_silos: int
) -> np.ndarray:
    """float64 [shown, silos]: each row adds up to 1."""
    row = np.full(owner[-1] + 1, -1)
    row[shown] = np.arange(shown.size)
    drawn = row[owner] >= 0
    table = np.zeros((shown.size, n_silos))
    table[row[owner[drawn]], place[drawn]] = counts[drawn]
    return table / table.sum(axis=1, keepdims=True)


def _new_axes(pyplot: Any, n_silos: int) -> Axes:
    width = min(max(5.0, 3.0 + 0.3 * n_silos), 9.0)
    return pyplot.subplots(figsize=(width, 5.5), layout="constrained")[1]


def _colours() -> Any:
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap(colormaps["Blues"](np.linspace(_PALEST, 1.0, 256)))


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def _label_silos(axes: Axes, called: tuple[Any, ...]) -> None:
    if len(called) > _MOST_NAMES:
        axes.set_xlabel("silo" if called == tuple(range(len(called))) else "silo, by number")
        axes.xaxis.get_major_locator().set_params(integer=True)
        return
    texts = [str(name) for name in called]
    texts = [t if len(t) <= _MOST_LETTERS else t[: _MOST_LETTERS - 1] + "…" for t in texts]
    axes.set_xticks(range(len(called)), texts)
    if max(map(len, texts)) > 2 and sum(map(len, texts)) > _MOST_LETTERS_LEVEL:
        for label in axes.get_xticklabels():
            label.set(rotation=45, ha="right", rotation_mode="anchor")
    axes.set_xlabel("silo")
