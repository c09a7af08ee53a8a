# SPDX-License-Identifier: Apache-2.0
"""dp_accounting's accountants, extended by the events of this package.

Subclasses, so that whatever composes a `DpEvent` into an accountant (dp_accounting's calibration,
TF-Privacy's queries) composes ours, alone, composed or sampled, beside its own in one ledger.

    accountant = SubjectPLDAccountant()
    accountant.compose(accounting.group_event(0.01, 50, 10.0), 200)
    accountant.compose(dp_accounting.LaplaceDpEvent(20.0))
    accountant.get_epsilon(1e-6)
    accountant.save("ledger.json")
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, Self

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from tf_subjectdp.accounting import _checks, event_json
from tf_subjectdp.accounting.engine.ledger import (
    Ledger,
    NotPrivate,
    UnknownEventError,
    canonical,
    ledger,
)
from tf_subjectdp.accounting.engine.pld import TARGET_ERROR, pld_delta, pld_epsilon
from tf_subjectdp.accounting.engine.renyi import (
    SMALLEST_THETA,
    convert_delta,
    convert_epsilon,
    rdp_delta,
    rdp_epsilon,
    renyi_divergence,
)

_Details = dp_accounting.PrivacyAccountant.CompositionErrorDetails
_COMPOSED = (dp_accounting.SelfComposedDpEvent, dp_accounting.ComposedDpEvent)
# The orders at which dp_accounting's own rules are evaluated: its own list.
_ORDERS = tuple(float(order) for order in RdpAccountant().orders)


def _relation(value: Any) -> NeighboringRelation:
    # A string would silently mean "add or remove" to everything that compares it.
    if not isinstance(value, NeighboringRelation):
        raise TypeError(
            f"neighboring_relation must be a dp_accounting.NeighboringRelation, got {value!r}; for "
            f"instance NeighboringRelation.REPLACE_ONE."
        )
    return value


def _refusal(
    event: Any, relation: NeighboringRelation, refused: str | None
) -> tuple[_Details | None, bool]:
    """Why `event`, one that is not composed, cannot be accounted for; and whether it is unknown.

    Args:
      event: a single event.
      relation: the accountant's.
      refused: the attribute of a mechanism that says why an engine cannot do it; or None.
    """
    if not isinstance(event, dp_event.DpEvent):
        return _Details(event, f"{event!r} is no DpEvent."), False
    try:
        mechanism = canonical(event, relation)
    except NotPrivate:
        return None, False
    except UnknownEventError as error:
        return _Details(event, str(error)), True
    except (TypeError, ValueError) as error:
        return _Details(event, str(error)), False
    reason = getattr(mechanism, refused) if refused and mechanism is not None else None
    return (None if reason is None else _Details(event, reason)), False


class _Saved:
    """Saving and replaying a ledger: mixed into both accountants."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the ledger as JSON: every event and how often, and the neighbouring relation.

        The file is replaced in one go, so a crash leaves the old one or the new one.
        """
        event_json.write(
            path,
            {"relation": self.neighboring_relation.name, "event": event_json.encode(self.ledger)},
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], **options: Any) -> Self:
        """Replays a saved ledger: epsilon is computed anew, never read from the file.

        Args:
          path: what `save` wrote (either accountant reads the other's).
          **options: passed on to the constructor, but for the neighbouring relation.

        Raises:
          ValueError: no such ledger, or an event that this accountant does not support.
        """
        config = event_json.read(path, ("relation", "event"))
        try:
            relation = NeighboringRelation[config["relation"]]
        except (KeyError, TypeError):
            raise ValueError(
                f"{os.fspath(path)!r} has relation {config['relation']!r}; known are "
                f"{[kind.name for kind in NeighboringRelation]}."
            ) from None
        accountant = cls(neighboring_relation=relation, **options)
        try:
            return accountant.compose(event_json.decode(config["event"]))
        except (TypeError, dp_accounting.UnsupportedEventError) as error:
            raise ValueError(
                f"{os.fspath(path)!r} holds an event that {cls.__name__} cannot account for: {error}"
            ) from None

    def compose(self, event: dp_event.DpEvent, count: int = 1) -> Self:
        """Adds `count` runs of `event`; see `dp_accounting.PrivacyAccountant.compose`.

        Raises:
          dp_accounting.UnsupportedEventError: the event cannot be accounted for; the reason is in
            it.
          TypeError, ValueError: `event` is no event, or `count` no whole number >= 0.
        """
        return super().compose(event, _checks.integer("count", count, 0))


class SubjectPLDAccountant(_Saved, PLDAccountant):
    """Privacy loss distributions (the default engine of this package) as an accountant.

    The grid follows the number of compositions (see `pld`), so there is no interval to choose:
    epsilon is within `relative_error` of the true value, or a warning says by how much it may not
    be, and is never below it.

    Args:
      neighboring_relation: what neighbouring data are, for dp_accounting's own events: under
        REPLACE_ONE a Gaussian of noise 1 has sensitivity 2, and a mixture of more than one sensitivity
        is not amplified by its sampling (no smaller bound is proven); a sample without replacement is
        always for replacing, with noise relative to C, where 2 C is moved. Randomized response against a
        special record counts as a replaced answer. Events of this package state their own pair.
      relative_error: aimed at by the discretisation, in [1e-7, 0.1].
    """

    def __init__(
        self,
        neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
        *,
        relative_error: float = TARGET_ERROR,
    ):
        super().__init__(_relation(neighboring_relation))
        error = _checks.sensitivity("relative_error", relative_error)
        if not 1e-7 <= error <= 0.1:
            raise ValueError(f"relative_error must be in [1e-7, 0.1], got {error:g}.")
        self._relative_error = error

    def _maybe_compose(self, event: Any, count: int, do_compose: bool) -> _Details | None:
        # Nothing is accumulated: the ledger is what is accounted for, when it is asked.
        if isinstance(event, _COMPOSED):
            return super()._maybe_compose(event, count, do_compose)
        return _refusal(event, self.neighboring_relation, "pld_refusal")[0]

    def _entries(self) -> Ledger:
        return ledger(self.ledger, 1, self.neighboring_relation)

    def get_epsilon(self, target_delta: float) -> float:
        """Smallest epsilon at `target_delta`, from above; raises what `accounting.epsilon` does."""
        entries = self._entries()
        if target_delta == 1:
            return math.inf if entries.nonprivate else 0.0
        delta = _checks.target_delta(target_delta, allow_zero=True)
        return pld_epsilon(entries, delta, self._relative_error)

    def get_delta(self, target_epsilon: float) -> float:
        """Smallest delta at `target_epsilon`, from above; raises what `accounting.delta` does."""
        entries = self._entries()
        if target_epsilon == math.inf:
            return float(entries.nonprivate)
        epsilon = _checks.target_epsilon(target_epsilon, allow_zero=True)
        return pld_delta(entries, epsilon, self._relative_error)


class SubjectRdpAccountant(_Saved, RdpAccountant):
    """Renyi differential privacy as an accountant, at real orders and with mixtures of Gaussians.

    Where all events are known to this package, the order is optimised over the reals; `orders`
    matter for `rdp`, and where dp_accounting's own rules are needed (RepeatAndSelect): then epsilon
    is the smallest over `orders`.

    Args:
      orders: Renyi orders, each at least 1.02 (nearer to 1 nothing can be told from rounding);
        None takes dp_accounting's.
      neighboring_relation: as in `SubjectPLDAccountant`.
    """

    def __init__(
        self,
        orders: Sequence[float] | None = None,
        neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
    ):
        chosen = _ORDERS if orders is None else tuple(float(order) for order in orders)
        if not chosen or not all(1.0 + SMALLEST_THETA <= a < math.inf for a in chosen):
            raise ValueError(
                f"orders must be finite and at least {1 + SMALLEST_THETA}, got {chosen}: closer to "
                f"1 a divergence cannot be told from rounding errors."
            )
        super().__init__(chosen, _relation(neighboring_relation))
        self._known: list[tuple[dp_event.DpEvent, int]] = []
        self._foreign = False
        self._at_orders = False

    def _maybe_compose(self, event: Any, count: int, do_compose: bool) -> _Details | None:
        if isinstance(event, _COMPOSED):
            return super()._maybe_compose(event, count, do_compose)
        if isinstance(event, dp_event.RepeatAndSelectDpEvent):
            # Its rule works on the divergences of what is repeated, at every order.
            outer, self._at_orders = self._at_orders, True
            self._foreign = self._foreign or do_compose
            try:
                return super()._maybe_compose(event, count, do_compose)
            finally:
                self._at_orders = outer
        details, unknown = _refusal(event, self.neighboring_relation, None)
        if unknown:
            self._foreign = self._foreign or do_compose
            return super()._maybe_compose(event, count, do_compose) and details
        if details is None and do_compose:
            if self._at_orders:
                self._rdp += count * self._divergences([(event, 1)])
            else:
                self._known.append((event, count))
        return details

    def _divergences(self, events: Sequence[tuple[dp_event.DpEvent, int]]) -> np.ndarray:
        total = np.zeros(len(self._orders))
        for event, count in events:
            entries = ledger(event, count, self.neighboring_relation)
            if entries.nonprivate:
                return np.full(len(self._orders), np.inf)
            for mechanism, times in entries.entries:
                total += times * np.array([renyi_divergence(mechanism, a) for a in self._orders])
        return total

    @property
    def rdp(self) -> np.ndarray:
        """Renyi divergence at each of `orders`, float64 of shape [orders]."""
        return self._rdp + self._divergences(self._known)

    def get_epsilon_and_optimal_order(self, target_delta: float) -> tuple[float, float]:
        """epsilon at `target_delta` over `orders` only, and the order that gives it."""
        delta = _checks.target_delta(target_delta, allow_zero=True)
        theta = np.asarray(self._orders) - 1.0
        values = convert_epsilon(theta, theta * self.rdp, delta)
        best = int(np.argmin(values))
        return max(0.0, float(values[best])), float(self._orders[best])

    def get_epsilon(self, target_delta: float) -> float:
        """An epsilon at `target_delta`, from above: the smallest over orders."""
        if target_delta == 1:
            return math.inf if np.isinf(self.rdp).all() else 0.0
        delta = _checks.target_delta(target_delta, allow_zero=True)
        if self._foreign:
            return self.get_epsilon_and_optimal_order(delta)[0]
        return rdp_epsilon(self._entries(), delta)

    def get_delta_and_optimal_order(self, target_epsilon: float) -> tuple[float, float]:
        """delta at `target_epsilon` over `orders` only, and the order that gives it."""
        epsilon = _checks.target_epsilon(target_epsilon, allow_zero=True)
        theta = np.asarray(self._orders) - 1.0
        values = convert_delta(theta, theta * self.rdp, epsilon)
        best = int(np.argmin(values))
        return float(values[best]), float(self._orders[best])

    def get_delta(self, target_epsilon: float) -> float:
        """A delta at `target_epsilon`, from above: the smallest over orders."""
        if target_epsilon == math.inf:
            return float(np.isinf(self.rdp).all())
        epsilon = _checks.target_epsilon(target_epsilon, allow_zero=True)
        if self._foreign:
            return self.get_delta_and_optimal_order(epsilon)[0]
        return rdp_delta(self._entries(), epsilon)

    def _entries(self) -> Ledger:
        return ledger(self.ledger, 1, self.neighboring_relation)
