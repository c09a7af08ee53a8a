# SPDX-License-Identifier: Apache-2.0
"""f-DP: trade-off curves, their algebra, and their exchange with (epsilon, delta).

    from tf_subjectdp.accounting import fdp
    curve = fdp.tensor(fdp.gaussian(1.0), fdp.subsample(fdp.gaussian(0.5), 0.01))
    curve(0.05), curve.delta(1.0), curve.epsilon(1e-5)

A curve computed numerically lies on or below the true one everywhere (the safe side), and says by
how much it may: `error` and `resolution`. `curves` says what a curve is, `algebra` what can be done
with curves, `batch_clipping` which curves training has that clips whole batches or parts of them (van
Dijk et al., arXiv:2212.05796).
"""

from tf_subjectdp.accounting.fdp.algebra import (
    approximate_dp,
    double_conjugate,
    from_approximate_dp,
    gaussian,
    group,
    identity,
    inverse,
    piecewise_linear,
    power,
    subsample,
    tensor,
)
from tf_subjectdp.accounting.fdp.batch_clipping import (
    ADVERSARY_A0,
    ADVERSARY_A1,
    BatchScheme,
    HitLaw,
    closed_form_curve,
    exact_curve,
    fixed_size_parts_curve,
    hit_law,
    independent_curve,
    lower_curve,
    paper_e1_curve,
    paper_f3_curve,
    paper_f3_occupancy,
    sampled_parts_curve,
    shuffled_parts_curve,
    upper_curve,
)
from tf_subjectdp.accounting.fdp.curves import (
    GaussianCurve,
    PiecewiseLinear,
    RevealedGaussians,
    TradeOff,
)

__all__ = [
    "ADVERSARY_A0",
    "ADVERSARY_A1",
    "BatchScheme",
    "GaussianCurve",
    "HitLaw",
    "PiecewiseLinear",
    "RevealedGaussians",
    "TradeOff",
    "approximate_dp",
    "closed_form_curve",
    "double_conjugate",
    "exact_curve",
    "fixed_size_parts_curve",
    "from_approximate_dp",
    "gaussian",
    "group",
    "hit_law",
    "identity",
    "independent_curve",
    "inverse",
    "lower_curve",
    "paper_e1_curve",
    "paper_f3_curve",
    "paper_f3_occupancy",
    "piecewise_linear",
    "power",
    "sampled_parts_curve",
    "shuffled_parts_curve",
    "subsample",
    "tensor",
    "upper_curve",
]
