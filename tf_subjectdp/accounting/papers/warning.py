# SPDX-License-Identifier: Apache-2.0
"""The warning that comes with every number of a paper that does not keep its promise."""

from __future__ import annotations

import warnings


class PaperRuleWarning(UserWarning):
    """A published rule was used; the text says what it gives, what is true, and why.

    Attributes:
      rule: short name of the rule and its paper, or None.
      published: the number that the paper's rule gives, or None.
      honest: the correct value of the SAME quantity (rounds, rate, noise, epsilon ...), or None.
      stated_epsilon: the epsilon that the paper states for its number, or None.
      honest_epsilon: the epsilon that the paper's number really gives, or None where the
        parameters given do not determine one.
      reason: why the rule fails, in a sentence.
    """

    def __init__(
        self,
        message: str,
        *,
        rule: str | None = None,
        published: float | None = None,
        honest: float | None = None,
        stated_epsilon: float | None = None,
        honest_epsilon: float | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(message)
        self.rule = rule
        self.published = published
        self.honest = honest
        self.stated_epsilon = stated_epsilon
        self.honest_epsilon = honest_epsilon
        self.reason = reason


def warn_paper_rule(warning: PaperRuleWarning, *, stacklevel: int = 2) -> None:
    """Emits `warning`; `stacklevel` counts from the caller of this function, as in `warnings`."""
    warnings.warn(warning, stacklevel=stacklevel + 1)
