# SPDX-License-Identifier: Apache-2.0
"""Elements that are k-means clusters of features (Asi, Duchi, Javidi: clusters of public features).

TensorFlow is imported where tensors are asked for.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_subjectdp import _validate, accounting
from tf_subjectdp.elements.kmeans import CELLS, kmeans, nearest, private_kmeans, tensor_nearest
from tf_subjectdp.elements.maps import TensorElements
from tf_subjectdp.noise_numpy import FreshDraws, public_draws
from tf_subjectdp.sampling.grouping import encode_ids

if TYPE_CHECKING:
    import dp_accounting
    import tensorflow as tf

#: Larger features would overflow when squared.
LARGEST = 1e100
_FORMAT = "tf_subjectdp.elements.KMeansElements 1"


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

    def __post_init__(self) -> None:
        _validate.integer("iterations", self.iterations, 0)
        _validate.noise("noise_multiplier", self.noise_multiplier)
        _validate.between("radius", self.radius, 0.0, LARGEST)
        if not isinstance(self.seeded, bool):
            raise TypeError(f"seeded is {self.seeded!r}: it must be true or false")
        free = not (self.iterations or self.noise_multiplier or self.radius or self.seeded)
        paid = self.iterations >= 1 and self.radius > 0.0
        if not {"public": free, "paid": paid}.get(self.kind, False):
            raise ValueError(f"no fit has {self}")


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
        self.n_clusters = _validate.integer("n_clusters", n_clusters, 1)
        if feature_extractor is not None and not callable(feature_extractor):
            raise TypeError(
                f"feature_extractor is {feature_extractor!r}: pass a function of a batch, a Keras "
                "model, or None"
            )
        self.feature_extractor = feature_extractor
        self.batch_size = _validate.integer("batch_size", batch_size, 1)
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
        restarts = _validate.integer("restarts", restarts, 1)
        iterations = _validate.integer("iterations", iterations, 1)
        rng = public_draws(seed)
        rows = features(x, self.feature_extractor, self.batch_size)
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
        vector of norm at most 1 (`kmeans` has the steps and the proof), so that neither the
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
        noise_multiplier = _validate.noise("noise_multiplier", noise_multiplier)
        radius = _validate.between("radius", radius, 1.0 / LARGEST, LARGEST)
        iterations = _validate.integer("iterations", iterations, 1)
        rng = FreshDraws() if seed is None else public_draws(_validate.integer("seed", seed, 0))
        rows = features(x, self.feature_extractor, self.batch_size)
        subjects, _ = encode_ids(subject_id)
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
        name = extractor_name(self.feature_extractor)
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
        batches = feature_batches(values, self.feature_extractor, self.batch_size, centres.shape[1])
        ids = [nearest(batch, centres)[0] for batch in batches]
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
        rows = tensor_features(rows, extractor, self.batch_size, width)
        ids = tensor_nearest(rows, self.centres)
        return ids if batched else tf.ensure_shape(ids, [1])[0]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes centres and provenance to one `.npz` file, without pickle; a file there is replaced.

        The feature extractor is not in it, only its name.

        Raises:
          ValueError: not fitted, or a path that does not end in ".npz".
        """
        record = {"format": _FORMAT, **dataclasses.asdict(self._record()), "inertia": self.inertia}
        record["extractor"] = extractor_name(self.feature_extractor)
        path = Path(path)
        if path.suffix != ".npz":
            raise ValueError(f"{str(path)!r} is no '.npz' file: pass a path that ends in '.npz'")
        text = json.dumps(record, allow_nan=False)
        # By way of a new file beside it, so that the old one stays whole until this one is.
        new = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")
        try:
            with open(new, "xb") as file:
                np.savez(file, centres=self._centres, provenance=np.array(text))
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
        finally:
            new.unlink(missing_ok=True)

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
        try:
            centres, fit, name, inertia = _parts_of_file(path)
        except (ValueError, TypeError, LookupError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"{os.fspath(path)!r} holds no elements ({error}): pass a file that KMeansElements.save "
                "wrote"
            ) from None
        if (name is None) != (feature_extractor is None):
            wanted = (
                "without a feature_extractor" if name is None else f"on the features of {name!r}"
            )
            raise ValueError(f"{os.fspath(path)!r} was fitted {wanted}: pass the same to load")
        made = cls(len(centres), feature_extractor, batch_size=batch_size)
        made.inertia = inertia
        made._set(centres, fit)
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


def extractor_name(extractor: Callable[[Any], Any] | None) -> str | None:
    """What a feature function is called, None for none."""
    if extractor is None:
        return None
    for attribute in ("name", "__qualname__"):
        found = getattr(extractor, attribute, None)
        if isinstance(found, str) and found:
            return found
    return type(extractor).__name__


def feature_batches(
    x: Any, extractor: Callable[[Any], Any] | None, batch_size: int, width: int | None = None
) -> Iterator[np.ndarray]:
    """The features of the rows of `x`, a piece at a time.

    Args:
      x: array [rows, ...]; numbers, unless there is an extractor.
      extractor: from a batch [b, ...] to features [b, ...] (array or eager tensor); a Keras model is
        called with training=False. None flattens each row.
      batch_size: rows that the extractor gets at once.
      width: features a row must have, None for any.

    Yields:
      float64 [b, width], all finite.

    Raises:
      TypeError: features that are no numbers.
      ValueError: another width or number of rows; a feature that is not finite, by its row.
    """
    rows = np.asarray(x)
    if rows.ndim == 0 or (extractor is None and rows.ndim == 1):
        raise ValueError(
            f"x has shape {rows.shape}: pass rows of features, shape [rows, ...]; x[:, None] for one "
            "number a row, x[None] for one row"
        )
    size = batch_size
    if extractor is None:
        size = max(1, CELLS // max(1, int(np.prod(rows.shape[1:]))))
    for low in range(0, len(rows), size):
        yield _checked(
            _called(extractor, rows[low : low + size]), rows[low : low + size], low, width
        )


def features(
    x: Any, extractor: Callable[[Any], Any] | None, batch_size: int, width: int | None = None
) -> np.ndarray:
    """As `feature_batches`, all at once: float64 [rows, width]; ValueError for no rows."""
    pieces: list[np.ndarray] = []
    for piece in feature_batches(x, extractor, batch_size, width):
        pieces.append(piece)
        width = piece.shape[1]
    if not pieces:
        raise ValueError("x has no rows: k-means needs at least one row for each cluster")
    return np.concatenate(pieces) if len(pieces) > 1 else pieces[0]


def tensor_features(
    values: Any, extractor: Callable[[Any], Any] | None, batch_size: int, width: int
) -> tf.Tensor:
    """As `features`, for a tensor [rows, ...], in graphs too: float64 [rows, width]."""
    import tensorflow as tf

    values = tf.convert_to_tensor(values)
    if extractor is None:
        if values.shape.rank is not None and values.shape.rank < 2:
            raise ValueError(
                f"the data have shape {values.shape}: pass rows of features, shape [rows, ...], or "
                "batched=False for a dataset of single data"
            )
        if values.dtype.is_complex or not (
            values.dtype.is_floating or values.dtype.is_integer or values.dtype.is_bool
        ):
            raise TypeError(f"the data are of type {values.dtype.name}: features must be numbers")
        static = values.shape[1:].num_elements() if values.shape.rank is not None else None
        if static is not None and static != width:
            raise ValueError(f"a row has {static} features and the centres have {width}")
        columns = tf.reduce_prod(tf.shape(values)[1:]) if static is None else static
        flat = tf.reshape(tf.cast(values, tf.float64), [tf.shape(values)[0], columns])
    else:

        def extracted(batch: np.ndarray) -> np.ndarray:
            pieces = list(feature_batches(batch, extractor, batch_size, width))
            return np.concatenate(pieces) if pieces else np.empty((0, width))

        # Called eagerly, not traced: its variables may be on an accelerator, out of a pipeline's
        # reach, and the features are those that the centres were fitted on.
        flat = tf.numpy_function(extracted, [values], tf.float64, stateful=False)
    flat = tf.ensure_shape(flat, [None, width])
    fine = tf.debugging.assert_less_equal(
        tf.abs(flat), tf.constant(LARGEST, tf.float64), "a feature is NaN, infinite or above 1e100"
    )
    with tf.control_dependencies([fine] if fine is not None else []):
        return tf.identity(flat)


def _called(extractor: Callable[[Any], Any] | None, batch: np.ndarray) -> np.ndarray:
    if extractor is None:
        return batch
    is_keras = any(
        kind.__name__ == "Layer" and "keras" in kind.__module__ for kind in type(extractor).__mro__
    )
    return np.asarray(extractor(batch, training=False) if is_keras else extractor(batch))


def _checked(made: np.ndarray, batch: np.ndarray, low: int, width: int | None) -> np.ndarray:
    if made.dtype.kind not in "biuf":
        raise TypeError(
            f"features are of type {made.dtype}: they must be numbers; pass numeric rows, or a "
            "feature_extractor that makes numbers of them"
        )
    if made.ndim == 0 or len(made) != len(batch):
        raise ValueError(
            f"feature_extractor returned shape {made.shape} for {len(batch)} rows: it must return one "
            "row of features for each"
        )
    flat = np.ascontiguousarray(made.reshape(len(made), -1), dtype=np.float64)
    if not flat.shape[1]:
        raise ValueError(f"x has shape [rows, {', '.join(map(str, made.shape[1:]))}]: no features")
    if width is not None and flat.shape[1] != width:
        raise ValueError(
            f"a row has {flat.shape[1]} features and the centres have {width}: pass rows as those that "
            "the centres were fitted on, and the same feature_extractor"
        )
    bad = ~(np.abs(flat) <= LARGEST)
    if bad.any():
        row, place = np.argwhere(bad)[0]
        raise ValueError(
            f"feature {place} of row {low + row} is {flat[row, place]}: features must be finite and at "
            f"most {LARGEST:g}; drop or repair such rows"
        )
    return flat


def _parts_of_file(
    path: str | os.PathLike[str],
) -> tuple[np.ndarray, Fit, str | None, float | None]:
    """Centres, fit, the extractor's name and the inertia; an error of several kinds for other files."""
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as parts:
        centres, record = parts["centres"], json.loads(str(parts["provenance"]))
    if not isinstance(record, dict) or record.pop("format", None) != _FORMAT:
        raise ValueError(f"its format is not {_FORMAT!r}")
    name, inertia = record.pop("extractor"), record.pop("inertia")
    if not isinstance(name, str | None):
        raise TypeError(f"its extractor is {name!r}")
    if inertia is not None:
        inertia = _validate.real("inertia", inertia)
    if centres.dtype != np.float64 or centres.ndim != 2 or not centres.size:
        raise ValueError(f"its centres are {centres.dtype} of shape {centres.shape}")
    if not np.isfinite(centres).all():
        raise ValueError("its centres are not finite")
    return centres, Fit(**record), name, inertia
