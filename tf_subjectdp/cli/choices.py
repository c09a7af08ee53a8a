# SPDX-License-Identifier: Apache-2.0
"""From the name of an algorithm and its bounds to the library's own object, and which sampling it knows.

Knows `algorithms` and the options' names; the commands ask here, so that each name means one thing.
"""

from __future__ import annotations

from tf_subjectdp import algorithms
from tf_subjectdp.cli.arguments import UsageError
from tf_subjectdp.cli.options import CLIP_ELEMENTS, CLIP_PARTS, SAMPLINGS

CLASSES = {
    "itemdp": algorithms.ItemDP,
    "higradavg": algorithms.HiGradAvg,
    "groupdp": algorithms.GroupDP,
    "subjectdp": algorithms.SubjectDP,
    "userldp": algorithms.UserLDP,
    "elementdp": algorithms.ElementDP,
    "element-subject": algorithms.ElementDP,
    "batchclipping": algorithms.BatchClipping,
    "mixedclipping": algorithms.MixedClipping,
}
CENTRAL = {"centralgroup": "CentralGroupDP", "centralhigradavg": "CentralHiGradAvg"}

_ONE = "noise standard deviation / clip norm"
_TWO = "noise standard deviation / (2 x clip norm)"


def algorithm_of(
    name: str,
    clip_norm: float = 1.0,
    *,
    cap: int | None = None,
    elements: int | None = None,
    items_per_element: int | None = None,
    parts: int | None = None,
) -> algorithms.Algorithm:
    """The algorithm of a name; bounds that it has no use for are not looked at.

    Args:
      name: a key of `CLASSES`.
      clip_norm: C, of no account for the accountant.
      cap: Z of `GroupDP`.
      elements: `max_elements` of `ElementDP`.
      items_per_element: `max_items_per_element` of `ElementDP`.
      parts: m of `MixedClipping`.
    """
    kind = CLASSES[name]
    if name == "groupdp":
        return kind(clip_norm, cap)
    if name in CLIP_ELEMENTS:
        return kind(clip_norm, elements, items_per_element)
    if name == "mixedclipping":
        return kind(clip_norm, parts=parts)
    return kind(clip_norm)


def noise_words(name: str) -> str:
    """What the noise multiplier of an algorithm counts."""
    return _TWO if name in CLIP_PARTS else _ONE


def check_parts(name: str, parts: int | None) -> None:
    """UsageError unless mixedclipping has its parts, and nothing else has."""
    if name != "mixedclipping":
        if parts is not None:
            raise UsageError(f"--parts is for mixedclipping, not for {name}")
    elif parts is None:
        raise UsageError(
            "--parts M is missing: mixedclipping clips the results of M parts of a batch"
        )
    elif parts < 1:
        raise UsageError(f"--parts is {parts}: it must be at least 1")


def check_sampling(name: str, sampling: str, *, rates: bool = True, named: bool = False) -> None:
    """UsageError for a sampling under which nothing is proven for the algorithm.

    Args:
      name, sampling: as on the command line.
      rates: whether the command takes rates, and sampled elements.
      named: whether --sampling says it, and not the size of a step.
    """
    if sampling not in SAMPLINGS:
        return
    if name in CLIP_PARTS and sampling in ("poisson-subjects", "poisson-elements"):
        remedy = f"say {'--q or ' if rates else ''}--batch instead"
        if named:
            remedy = f"leave out --sampling {sampling}"
        raise UsageError(
            f"{name} samples items, and nothing is proven for parts of batches of whole subjects: "
            f"{remedy}"
        )
    if name in CLIP_ELEMENTS and sampling in ("fixed-size", "shuffle"):
        raise UsageError(
            f"nothing is proven for {name} with sampling {sampling}: leave out --sampling, and sample "
            + ("subjects, elements or items" if rates else "subjects")
        )
    if name not in CLIP_ELEMENTS and sampling == "poisson-elements":
        raise UsageError(f"sampling poisson-elements is for elementdp, not for {name}")
