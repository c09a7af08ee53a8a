# SPDX-License-Identifier: Apache-2.0
"""Elements that are k-means clusters of features (Asi, Duchi, Javidi: clusters of public features).

Knows `lloyd` (public data), `private_lloyd` (private data, paid for), `nearest`, the file format, and
the accountant's events. TensorFlow is imported by `tensor_ids` and `map_dataset` alone.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_subjectdp import accounting
from tf_subjectdp.accounting._checks import noise as checked_noise
from tf_subjectdp.elements import _checks, nearest, saving
from tf_subjectdp.elements.base import TensorElements
from tf_subjectdp.elements.lloyd import kmeans
from tf_subjectdp.elements.private_lloyd import private_kmeans
from tf_subjectdp.noise_numpy import FreshDraws

if TYPE_CHECKING:
    import dp_accounting
    import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Fit:
    """Where centres come from.

    Attributes:
      kind: "public" or "paid".
      iterations: noisy iterations that were paid for; 0 for public data.
      noise_multiplier: of each of them.
      radius: the public bound on the length of a feature vector.
      seeded: whether the noise was drawn from a seed, and so is none.
    """

    kind: str
    iterations: int = 0
    noise_multiplier: float = 0.0
    radius: float = 0.0
    seeded: bool = False


class KMeansElements(TensorElements):
    """The element of a datum is the k-means centre nearest to its features.

        elements = KMeansElements(100).fit(public_x, public=True)
        element_id = elements.element_ids(private_x)

    The features are computed from one datum by a function that must be public too: one that was
    trained on the private data would have to be paid for.

    Args:
      n_clusters: K, at least 1.
      feature_extractor: from a batch of data [b, ...] to features [b, ...], as an array or an eager
        tensor; a Keras model is called with training=False. It must treat the rows of a batch one by
        one. None flattens each datum.
      batch_size: rows that the extractor gets at once.

    Raises:
      TypeError, ValueError: an argument of another type or out of its range.
    """

    def __init__(
        self,
        n_clusters: int,
        feature_extractor: Callable[[Any], Any] | None = None,
        *,
        batch_size: int = 256,
    ):
        self.n_clusters = _checks.whole("n_clusters", n_clusters)
        if feature_extractor is not None and not callable(feature_extractor):
            raise TypeError(
                f"feature_extractor is {feature_extractor!r}: pass a function of a batch, a Keras "
                "model, or None"
            )
        self.feature_extractor = feature_extractor
        self.batch_size = _checks.whole("batch_size", batch_size)
        self.inertia: float | None = None
        self._centres: np.ndarray | None = None
        self._fit: Fit | None = None

    def fit(
        self,
        x: Any,
        *,
        public: bool,
        restarts: int = 4,
        iterations: int = 100,
        seed: np.random.Generator | int | None = None,
    ) -> KMeansElements:
        """Fits the centres to PUBLIC data: k-means++ and Lloyd's algorithm, the best of some starts.

        Args:
          x: data [rows, ...], with at least `n_clusters` different rows of features.
          public: True is your word that x is public data: nobody's privacy depends on it.
          restarts: starts, of which the one with the lowest inertia is kept.
          iterations: most iterations of Lloyd's algorithm in a start.
          seed: a whole number gives the same centres again (public data need no secret); a `Generator`
            is drawn from; None is fresh.

        Returns:
          The object itself; `inertia` is the sum of squared distances to the nearest centre.

        Raises:
          ValueError: `public=False`; fitted already; no rows, features that are not finite, too few
            different rows.
          TypeError: features that are no numbers, `public` that is no bool.
        """
        if not isinstance(public, (bool, np.bool_)):
            raise TypeError(
                f"public is {public!r}: pass True if x is public data, as your word for it"
            )
        if not public:
            raise ValueError(
                "public=False: fitting the elements on private data must be paid for, since the "
                "centres tell about the data: use fit_private(x, subject_id, noise_multiplier=..., "
                "radius=...), or fit on public data"
            )
        self._check_unfitted()
        restarts = _checks.whole("restarts", restarts)
        iterations = _checks.whole("iterations", iterations)
        rng = _checks.generator(seed)
        rows = nearest.features(x, self.feature_extractor, self.batch_size)
        centres, self.inertia = kmeans(rows, self.n_clusters, restarts, iterations, rng)
        self._set(centres, Fit("public"))
        return self

    def fit_private(
        self,
        x: Any,
        subject_id: Any,
        *,
        noise_multiplier: float,
        radius: float,
        iterations: int = 5,
        seed: int | None = None,
    ) -> KMeansElements:
        """Fits the centres to PRIVATE data by noisy iterations of Lloyd's algorithm, and says the cost.

        Subject level: everything that one subject gives to an iteration, over all its data, is one
        vector of norm at most 1 (`private_lloyd` has the steps and the proof), so that neither the
        number of a subject's data nor of subjects need be bounded or public. `event` is the cost for a
        subject added or removed, `element_event` for one element replaced. Both compose with those of a
        training.

        Args:
          x: data [rows, ...].
          subject_id: one id a row: integers, strings or bytes.
          noise_multiplier: noise standard deviation over a subject's largest contribution; 0.0 is
            accepted and NOT PRIVATE.
          radius: PUBLIC bound on the length of a feature vector, from 1e-100 to 1e100; longer ones are
            shortened to it. Centre the features around 0 by public means: the first centres are drawn
            over the whole ball.
          iterations: at least 1; public, each is paid for.
          seed: for tests only: NOT PRIVATE. None draws noise from the operating system's entropy.

        Returns:
          The object itself.

        Raises:
          ValueError: fitted already; an argument out of its range; features that are not finite; another
            number of ids than rows; a missing id.
          TypeError: an argument, features or ids of another type.
        """
        self._check_unfitted()
        noise_multiplier = checked_noise("noise_multiplier", noise_multiplier)
        radius = _checks.positive("radius", radius)
        iterations = _checks.whole("iterations", iterations)
        rng = FreshDraws() if seed is None else _checks.generator(_checks.whole("seed", seed, 0))
        rows = nearest.features(x, self.feature_extractor, self.batch_size)
        subjects, _ = _checks.codes(subject_id, "subject id")
        if len(subjects) != len(rows):
            raise ValueError(
                f"there are {len(subjects)} subject ids and {len(rows)} rows of x: pass one id a row"
            )
        centres = private_kmeans(
            rows,
            subjects,
            self.n_clusters,
            noise_multiplier=noise_multiplier,
            radius=radius,
            iterations=iterations,
            rng=rng,
        )
        self._set(centres, Fit("paid", iterations, noise_multiplier, radius, seed is not None))
        return self

    @property
    def centres(self) -> np.ndarray:
        """float64 [n_clusters, width], read-only; ValueError before a fit."""
        self._record()
        return self._centres

    @property
    def seeded(self) -> bool:
        """Whether the centres were fitted to private data with noise from a seed: NOT PRIVATE."""
        return self._record().seeded

    @property
    def event(self) -> dp_accounting.DpEvent:
        """The cost of the fit for one SUBJECT added or removed; nothing for public data.

        Without noise, or with noise from a seed, it is the event that has no finite epsilon.
        """
        return self._composed(lambda sigma: accounting.subject_event(1.0, sigma))

    @property
    def element_event(self) -> dp_accounting.DpEvent:
        """The cost of the fit for one ELEMENT, or all data of a subject, REPLACED: 2 an iteration."""
        return self._composed(lambda sigma: accounting.revealed_event([2.0], [1.0], sigma))

    def epsilon(self, delta: float) -> float:
        """The epsilon of `event` at `delta`: 0 for public data, infinite without noise or from a seed."""
        return accounting.epsilon(self.event, delta=delta)

    @property
    def provenance(self) -> str:
        fit = self._record()
        name = nearest.extractor_name(self.feature_extractor)
        made = "of the data" if name is None else f"of public features ({name})"
        start = (
            f"the elements are {self.n_clusters} k-means clusters {made}, whose centres were fitted"
        )
        if fit.kind == "public":
            return f"The {start[4:]} on data that the user declared to be public, at no cost in privacy."
        how = (
            f"on the private data by {fit.iterations} noisy iterations (features within radius "
            f"{fit.radius:g}, noise multiplier {fit.noise_multiplier:g}, subject unit, add or remove)"
        )
        if fit.seeded:
            return (
                f"NOT PRIVATE: {start} {how} with noise from a known seed, which protects nobody."
            )
        if fit.noise_multiplier == 0.0:
            return f"NOT PRIVATE: {start} {how} without noise."
        return f"The {start[4:]} {how}, {fit.iterations} Gaussian releases to be paid for."

    def element_ids(self, values: Any) -> np.ndarray:
        """The nearest centre of each row, in bounded memory.

        Args:
          values: data [rows, ...]; no rows are fine.

        Returns:
          int64 [rows], in 0..n_clusters-1; of centres at the same distance (up to 2^-30 of its square)
          the lowest number.

        Raises:
          ValueError: not fitted; another width; features that are not finite, by row.
          TypeError: features that are no numbers.
        """
        centres = self.centres
        batches = nearest.feature_batches(
            values, self.feature_extractor, self.batch_size, centres.shape[1]
        )
        ids = [nearest.nearest(batch, centres)[0] for batch in batches]
        return np.concatenate(ids) if ids else np.empty(0, np.int64)

    def tensor_ids(self, values: Any, *, batched: bool = True) -> tf.Tensor:
        """As `element_ids`, for tensors, in graphs too; see `TensorElements`.

        A feature extractor is called eagerly, by way of `tf.numpy_function`, so that its variables may
        be on an accelerator; such a pipeline cannot be saved.
        """
        import tensorflow as tf

        values = tf.convert_to_tensor(values)
        rows = values if batched else values[None]
        extractor, width = self.feature_extractor, self.centres.shape[1]
        rows = nearest.tensor_features(rows, extractor, self.batch_size, width)
        ids = nearest.tensor_nearest(rows, self.centres)
        return ids if batched else tf.ensure_shape(ids, [1])[0]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes centres and provenance to one `.npz` file, without pickle; a file there is replaced.

        The feature extractor is not in it, only its name.

        Raises:
          ValueError: not fitted, or a path that does not end in ".npz".
        """
        record = dataclasses.asdict(self._record())
        record["extractor"] = nearest.extractor_name(self.feature_extractor)
        record["inertia"] = self.inertia
        saving.write(path, self._centres, record)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        feature_extractor: Callable[[Any], Any] | None = None,
        *,
        batch_size: int = 256,
    ) -> KMeansElements:
        """Reads what `save` wrote: the same ids, provenance and event.

        Args:
          path: of the file.
          feature_extractor: the one that it was fitted with, which is not in the file.
          batch_size: as in `KMeansElements`.

        Raises:
          ValueError: no such file format; fitted with an extractor and none passed, or the reverse.
        """
        centres, record = saving.read(path)
        name, inertia = record.pop("extractor"), record.pop("inertia")
        if (name is None) != (feature_extractor is None):
            wanted = (
                "without a feature_extractor" if name is None else f"on the features of {name!r}"
            )
            raise ValueError(f"{os.fspath(path)!r} was fitted {wanted}: pass the same to load")
        made = cls(len(centres), feature_extractor, batch_size=batch_size)
        made.inertia = inertia
        made._set(centres, Fit(**record))
        return made

    def _set(self, centres: np.ndarray, fit: Fit) -> None:
        centres = np.array(centres, np.float64)
        centres.flags.writeable = False
        self._centres, self._fit = centres, fit

    def _record(self) -> Fit:
        if self._fit is None:
            raise ValueError(
                "these elements are not fitted: call fit(x, public=True) or fit_private, or load"
            )
        return self._fit

    def _composed(self, event_of: Callable[[float], Any]) -> dp_accounting.DpEvent:
        fit = self._record()
        if fit.kind == "public":
            return accounting.compose([])
        one = event_of(0.0 if fit.seeded else fit.noise_multiplier)
        return accounting.compose([(one, fit.iterations)])

    def _check_unfitted(self) -> None:
        if self._fit is not None:
            raise ValueError(
                "these elements are fitted already: make new ones, so that no id changes under a plan; "
                "a second fit_private on the same data adds its event to the first's"
            )
