# SPDX-License-Identifier: Apache-2.0
"""The lineage of weights: which runs of private steps, or what from elsewhere, went into those at hand.

The runs themselves, and what they cost together, are in `tf_subjectdp.runs`; here weights are recognised.

Every noised step moves every coordinate of every weight by fresh continuous noise, unless a constraint
holds it. A few coordinates of a variable therefore say which step of which run left it.
`LineageTracker` compares the weights at hand with what its own steps left; what something else has
written is looked up among all that this process left or read from a file. Found, its cost is known and is
added; not found, every statement of these weights leads with that. However weights are brought in
(a file, a checkpoint, `set_weights`, a copy, a layer of another model, Keras's own `fit`), they are
recognised by their values.
"""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import logging
import math
import secrets
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_subjectdp.keras import compat
from tf_subjectdp.runs import PUBLIC, UNKNOWN, Lineage, PrivateRun, WeightsCost

_log = logging.getLogger("tf_subjectdp")

# Coordinates of a variable that are looked at.
_COORDINATES = 8
# Foreign weights that traced steps met and that Python has not looked up yet; more are not known.
_MET = 16
# Values that are known at most, of one variable at one time each (some 50 MB): the oldest are then
# forgotten, and count as from elsewhere if they come back.
_MOST_KNOWN = 2**18


# -- how weights are recognised -----------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def _coordinates(shape: tuple[int, ...]) -> np.ndarray:
    """The places that are looked at, int64 [places, rank]."""
    size = math.prod(shape)
    count = min(_COORDINATES, size)
    # One in each part of the variable, anywhere in it: even steps may all lie in one column.
    anywhere = np.random.default_rng(shape).integers(0, size // count, count)
    flat = np.arange(count, dtype=np.int64) * size // count + anywhere
    return np.stack(np.unravel_index(flat, shape), axis=-1)


def _sample(variables: Sequence[tf.Variable]) -> tf.Tensor:
    """A few coordinates of each variable, one after the other, float32 [places in all]."""
    parts = []
    for variable in variables:
        if variable.shape.rank == 0:
            part = tf.reshape(variable, [1])
        else:
            # A variable that was looked up once is copied whole at each later read: those alone that
            # the model looks up too, which is told by Keras's name for them (slots bear it as well).
            table = variable.trainable and "embeddings" in variable.name.split("/")[-1]
            values = variable if table else variable.read_value()
            part = tf.gather_nd(values, _coordinates(tuple(variable.shape)))
        parts.append(part if part.dtype == tf.float32 else tf.cast(part, tf.float32))
    return tf.concat(parts, 0)


def _split(sample: np.ndarray, variables: Sequence[tf.Variable]) -> list[np.ndarray]:
    sizes = [min(_COORDINATES, variable.shape.num_elements()) for variable in variables]
    return np.split(sample, np.cumsum(sizes)[:-1])


def _same(left: np.ndarray, right: np.ndarray) -> bool:
    return bool(np.array_equal(left, right, equal_nan=True))


def _fingerprint(sample: np.ndarray) -> str | None:
    """What tells these values from all others; None if they are one number."""
    if np.isnan(sample).any() or (sample == sample[0]).all():
        if sample.size > 1 or np.isnan(sample[0]) or sample[0] in (0.0, 1.0):
            return None
    return hashlib.blake2b(sample.tobytes(), digest_size=10).hexdigest()


def _digest(variable: tf.Variable) -> tuple[int, int, bytes]:
    """All of a weight's bits: what Keras trains without noise may be a few rows of a table."""
    values = np.ascontiguousarray(variable.numpy()).reshape(-1).view(np.uint8)
    words = values[: values.size // 8 * 8].view(np.uint64)
    xor = int(np.bitwise_xor.reduce(words)) if words.size else 0
    return xor, int(words.sum(dtype=np.uint64)), values[words.size * 8 :].tobytes()


def _is_constant(variable: tf.Variable, sample: np.ndarray) -> bool:
    """Whether a weight is one number everywhere, which nothing was learned into."""
    if _fingerprint(sample) is not None:
        return False
    values = variable.numpy()
    return bool((values == values.flat[0]).all())


# By fingerprint: everything released of weights that this process left behind or read from a file, and
# their digest where Python saw all of them; the oldest first.
_KNOWN: collections.OrderedDict[str, tuple[Lineage, Any]] = collections.OrderedDict()
# Those who train: what their latest steps left is made known when somebody has to look it up.
_TRAINING: "weakref.WeakSet[LineageTracker]" = weakref.WeakSet()


def _register(marks: Iterable[tuple[str | None, Any]], record: Lineage) -> None:
    """`marks`: fingerprints, and digests or None."""
    for fingerprint, digest in marks:
        if fingerprint is None:
            continue
        before, known = _KNOWN.pop(fingerprint, (None, None))
        found, digest = record, known if digest is None else digest
        if before is not None and record.unknown and not before.unknown:
            # These very values are known: that others beside them are not, here or to the one who
            # wrote a file, changes nothing.
            found = before
        elif before is not None and before is not record:
            found = Lineage(before.runs.items(), before.remarks)
            found.absorb(record)
        _KNOWN[fingerprint] = found, digest  # as the newest
    while len(_KNOWN) > _MOST_KNOWN:
        _KNOWN.popitem(last=False)


def register_file(config: dict[str, Any]) -> Lineage:
    """Makes the weights of a file (`LineageTracker.file`) known; returns what was released of them.

    Raises:
      ValueError: a file that does not say so.
    """
    if not isinstance(config, dict) or not {"record", "weights"} <= set(config):
        raise ValueError(
            "this file was saved by an earlier version, or not by this library: what was released of its "
            "weights cannot be read. Load its inner model's weights into a new PrivateModel, whose "
            "statement then says that their cost is not known."
        )
    for fingerprints, record in config["weights"]:
        _register([(found, None) for found in fingerprints], Lineage.from_config(record))
    return Lineage.from_config(config["record"])


# -- whether weights are fresh ------------------------------------------------------------------------


_RECORDING = threading.RLock()


@contextlib.contextmanager
def recorded_initialisers() -> Iterator[dict[int, tuple[tf.Variable, Any]]]:
    """By identity, the weights that layers add meanwhile, and the initialisers that they ask for.

    Complete when the context is left. What a layer then writes into a weight is not in it, nor what a
    checkpoint that waited for the weight does.
    """
    added, found, place = [], {}, 1 if compat.KERAS_3 else 3
    layer_class = tf.keras.layers.Layer

    def add_weight(layer: Any, *args: Any, **kwargs: Any) -> Any:
        args = list(args)
        if len(args) > place:
            args[place] = initializer = tf.keras.initializers.get(args[place])
        else:
            asked = kwargs.get("initializer")
            if asked is None and kwargs.get("dtype") is None and len(args) < 3:
                asked = "glorot_uniform"  # Keras's default, which it keeps to itself.
            kwargs["initializer"] = initializer = tf.keras.initializers.get(asked)
        variable = original(layer, *args, **kwargs)
        added.append((variable, initializer))
        return variable

    with _RECORDING:
        original = layer_class.add_weight
        layer_class.add_weight = functools.wraps(original)(add_weight)
        try:
            yield found
        finally:
            layer_class.add_weight = original
    found.update((id(compat.raw(v)), (compat.raw(v), initializer)) for v, initializer in added)


def _initial(
    layers: Sequence[Any],
    drawn: Mapping[int, tuple[tf.Variable, Any]],
    variables: Sequence[tf.Variable],
) -> dict[int, bool]:
    """By identity, whether a weight is what its layer's initialiser made; those that can be told.

    Keras's initialisers give the same values each time that they are called. `drawn` is what
    `recorded_initialisers` found; of other weights the layers' attributes tell.
    """
    unseen, told = {id(variable) for variable in variables}, {}
    for key in unseen & set(drawn):
        fresh = _is_initial(None, drawn[key][1], drawn[key][0])
        if fresh is not None:
            told[key] = fresh
    unseen -= set(told)
    for layer in layers:
        for name, initializer in list(vars(layer).items()):
            if not name.endswith("_initializer"):
                continue
            stem = name.removesuffix("_initializer")
            for attribute in (stem, f"{stem}_kernel"):
                variable = compat.raw(getattr(layer, attribute, None))
                if id(variable) in unseen:
                    fresh = _is_initial(layer, initializer, variable)
                    if fresh is not None:
                        told[id(variable)] = fresh
    return told


def _is_initial(layer: Any, initializer: Any, variable: tf.Variable) -> bool | None:
    random = type(getattr(initializer, "seed", None))
    if any(np.ndim(given) > 0 for given in vars(initializer).values()):
        return False  # An array from somewhere.
    of_keras = type(initializer).__module__.split(".")[0] == "keras"
    if not of_keras or random not in (int, type(None)):
        return None
    with warnings.catch_warnings(), tf.device(variable.device):
        warnings.simplefilter("ignore")  # that the values will be the same
        initial = initializer(tuple(variable.shape), dtype=variable.dtype.name).numpy()
    if getattr(layer, "unit_forget_bias", False) and initializer is layer.bias_initializer:
        initial = initial.copy()
        initial[..., layer.units : 2 * layer.units] = 1.0
    now, initial, scale = variable.numpy().ravel(), initial.ravel(), 1.0
    if random is int:
        # Keras 3's EinsumDense draws with the same seed and another scale, which its axes decide.
        largest = np.argmax(np.abs(initial))
        scale = float(now[largest]) / float(initial[largest])
    # In pieces: a weight may be most of what the memory holds.
    return all(
        np.allclose(
            now[first : first + 2**20].astype(np.float64),
            initial[first : first + 2**20].astype(np.float64) * scale,
            rtol=1e-5,
            atol=1e-30,
        )
        for first in range(0, now.size, 2**20)
    )


def _values(variables: Sequence[tf.Variable]) -> list[np.ndarray]:
    return _split(_sample(variables).numpy(), variables) if variables else []


# -- the weights at hand ------------------------------------------------------------------------------


class _Stepped:
    """Weights that traced steps write, with what the last step left and what later ones met instead.

    Attributes:
      variables: the weights.
      left: float32 [places], what the last step left.
      met: float32 [_MET, 2, places], pairs (found, left) of steps that found something else.
      count: int64, how many such steps there were.
    """

    def __init__(self, variables: Sequence[tf.Variable]):
        self.variables = list(variables)
        now = _sample(self.variables)
        given = {"trainable": False, "aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA}
        self.left = tf.Variable(now, **given)
        self.met = tf.Variable(tf.zeros([_MET, 2, now.shape[0]]), **given)
        self.count = tf.Variable(0, dtype=tf.int64, **given)
        self.looked_up = 0

    @tf.autograph.experimental.do_not_convert
    def before_step(self) -> None:
        """Notes weights that are not those which the step before has left."""
        now, left = _sample(self.variables), tf.identity(self.left)
        # The last part: what is no number differs from itself.
        foreign = tf.reduce_any(tf.not_equal(now, left) & tf.equal(now, now))
        place = tf.reshape(self.count % _MET, [1])
        pair = tf.stack([now, left])
        self.met.scatter_update(tf.IndexedSlices(pair[tf.newaxis], place))
        self.count.assign_add(tf.cast(foreign, tf.int64))

    @tf.autograph.experimental.do_not_convert
    def after_step(self) -> None:
        self.left.assign(_sample(self.variables))

    def last_left(self) -> list[np.ndarray]:
        return _split(self.left.numpy(), self.variables)

    def what_steps_met(self) -> tuple[list[tuple[tf.Variable, np.ndarray]], bool]:
        """Weights and values that were met since the last call; and whether some are lost."""
        count, found = int(self.count.numpy()), []
        first = max(self.looked_up, count - _MET)
        lost, self.looked_up = first > self.looked_up, count
        met = self.met.numpy() if count > first else None
        for number in range(first, count):
            pair = [_split(side, self.variables) for side in met[number % _MET]]
            found += [
                (variable, now)
                for variable, now, left in zip(self.variables, *pair, strict=True)
                if not _same(now, left)
            ]
        return found, lost


class LineageTracker:
    """Follows the weights that one optimizer trains, or one wrapper holds, and keeps their lineage.

    Args:
      initial_weights: "public" says that the weights before the first step need no protection.

    Attributes:
      owner: the optimizer, which counts the own steps (`CountsSteps`); None for a wrapper without one.
    """

    def __init__(self, initial_weights: str | None = None):
        if initial_weights not in (None, "public"):
            raise ValueError(
                f"initial_weights={initial_weights!r} must be None, or 'public' for weights that are "
                "fresh or were trained on data that need no protection."
            )
        self.name = secrets.token_hex(8)
        self.initial_weights = initial_weights
        self.owner: Any = None
        self._record = Lineage()
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()
        # By the variable's identity: its latest values with their digest (None: a step left them), and
        # those that were last written from outside.
        self._seen: dict[int, tuple[tf.Variable, np.ndarray, Any]] = {}
        self._given: dict[int, np.ndarray] = {}
        self._stepped: dict[tuple[int, ...], _Stepped] = {}
        self._steps_at_look = 0
        self._unknown: set[str] = set()
        # What was read while a file is being loaded.
        self._waiting: list[Lineage] | None = None

    def __del__(self) -> None:
        # The weights may live on, in another model; what the last steps left goes with them.
        if getattr(self, "_stepped", None) and not sys.is_finalizing():
            with tf.init_scope():
                self._make_known()

    def __deepcopy__(self, memo: Any) -> "LineageTracker":
        # A copy of an optimizer goes its own way: two runs, and what came before belongs to both.
        copied = LineageTracker(self.initial_weights)
        copied._record.absorb(self.record)
        return copied

    def __reduce__(self) -> Any:
        return _unpickled, (self.initial_weights, self.record.get_config())

    def remark(self, sentence: str) -> None:
        """Notes what every statement about these weights must say before its figures; said once."""
        self._record.remarks[sentence] = None

    @property
    def remarks(self) -> tuple[str, ...]:
        """The sentences of `remark`, which no epsilon covers; that weights are from elsewhere leads."""
        return self._record.first()

    @property
    def decisions(self) -> list[str]:
        """Those of `remarks` that an optimizer's settings may carry on: what callbacks have decided."""
        return [said for said in self._record.remarks if said not in (UNKNOWN, PUBLIC)]

    @property
    def unknown(self) -> bool:
        """Whether some weights came from elsewhere, so that no figure covers all of them."""
        return self._record.unknown

    @property
    def record(self) -> Lineage:
        """All of it, the optimizer's own run so far included."""
        found = Lineage(self._record.runs.items(), self._record.remarks)
        if self.owner is not None:
            found.add(self.name, self.owner.own_run)
        return found

    @property
    def version(self) -> Any:
        """Changes with whatever weights brought in."""
        before, others = self._record.split(self.owner.identity, without=self.name)
        return before.tolist(), [run.steps for run in others], self.unknown

    def of_other_plans(self) -> tuple[PrivateRun, ...]:
        """The runs whose steps are not among those that the optimizer counts."""
        return self._record.split(self.owner.identity, without=self.name)[1]

    def of_this_plan(self) -> np.ndarray:
        """int64 [2]: steps, and seeded ones, of other runs of the optimizer's own plan."""
        return self._record.split(self.owner.identity, without=self.name)[0]

    @property
    def cost(self) -> WeightsCost:
        """What a statement is about: the optimizer's plan, and all that its weights brought with them."""
        owner = self.owner
        own = dataclasses.replace(
            owner.own_run, steps=owner.steps_taken, seeded=owner.steps_drawn_with_seed
        )
        before = int(self.of_this_plan()[0])
        return WeightsCost(own, owner.divisor, before, self.of_other_plans(), self.remarks)

    # -- what is looked at ----------------------------------------------------------------------------

    def watch(self, model: Any) -> "LineageTracker":
        """Looks after all weights of a Keras model from now on."""
        self._models.add(model)
        return self

    @tf.autograph.experimental.do_not_convert
    def stepped(
        self, variables: Sequence[Any], layers: Sequence[Any], slots: Sequence[tf.Variable] = ()
    ) -> _Stepped:
        """What traced steps on `variables` have to tell; made, and looked at, once.

        The `slots` of the inner optimizer (its moments) go into the weights with every step: they are
        looked at as the weights are.
        """
        variables = [compat.raw(variable) for variable in variables]
        key = tuple(id(variable) for variable in (*variables, *slots))
        if key not in self._stepped:
            with tf.init_scope():
                self._look_at(variables, layers)
                self._look_at(slots, [])
                self._stepped[key] = _Stepped([*variables, *slots])
            _TRAINING.add(self)
        return self._stepped[key]

    def look(self, drawn: Mapping[int, tuple[tf.Variable, Any]] | None = None) -> "LineageTracker":
        """Compares all weights with what the own steps left, and makes the weights known.

        Args:
          drawn: of weights that were just made, see `recorded_initialisers`.
        """
        with tf.init_scope():
            self._look(drawn or {})
        return self

    def _look(self, drawn: Mapping[int, tuple[tf.Variable, Any]]) -> None:
        self._ask_steps()
        taken = 0 if self.owner is None else int(self.owner.own_counts[0])
        moved, self._steps_at_look = taken != self._steps_at_look, taken
        # Several lists of weights may share some: the latest step of any of them counts.
        for steps in self._stepped.values():
            values = _values(steps.variables)
            for variable, now, left in zip(steps.variables, values, steps.last_left(), strict=True):
                if _same(now, left) and (moved or not self._saw(variable, now)):
                    self._seen[id(variable)] = (variable, now, None)
        for steps in self._stepped.values():
            self._look_at(steps.variables, [])
            steps.left.assign(_sample(steps.variables))
        for model in list(self._models):
            layers = compat.all_layers(model)
            self._look_at(compat.weights_of(layers), layers, drawn)
        self._make_known()

    def look_at_turns(self) -> None:
        """Before a single step: others who train may have written weights that are shared with them."""
        if len(_TRAINING) > 1:
            self.look()

    def accept(self) -> None:
        """Takes the weights as they are for the own steps' work: an average of them, for instance."""
        for steps in self._stepped.values():
            steps.left.assign(_sample(steps.variables))
            for variable, left in zip(steps.variables, steps.last_left(), strict=True):
                self._seen[id(variable)] = (variable, left, None)

    def _saw(self, variable: tf.Variable, sample: np.ndarray) -> bool:
        return id(variable) in self._seen and _same(self._seen[id(variable)][1], sample)

    def absorb(self, record: Lineage) -> None:
        """Adds what was released of weights that came in; the owner counts runs of its own plan."""
        if self._waiting is not None:
            self._waiting.append(record)
            return
        if self.owner is None:
            self._record.absorb(record)
            return
        own = self.owner.own_counts
        self._record.absorb(record)
        if self.name in record.runs:
            run = record.runs[self.name]
            own = np.maximum(own, [run.steps, run.seeded])
        self.owner.raise_counts(own + self.of_this_plan())

    @contextlib.contextmanager
    def loading(self, variables: Sequence[tf.Variable]) -> Iterator[None]:
        """A load that fails brings nothing: the variables, and what is known of them, stay."""
        self.look()
        before, self._waiting = [variable.numpy() for variable in variables], []
        try:
            yield
        except Exception:
            self._waiting = []
            for variable, value in zip(variables, before, strict=True):
                variable.assign(value)
            raise
        finally:
            waiting, self._waiting = self._waiting, None
        for record in waiting:
            self.absorb(record)

    def take_over(self, other: "LineageTracker") -> None:
        """Goes on with weights that `other` has looked after."""
        word = self.initial_weights or other.initial_weights
        self.initial_weights = other.initial_weights = word
        self.absorb(other.look().record)
        self._seen.update(other._seen)
        self._given.update({key: value for key, (_, value, _) in other._seen.items()})

    def _look_at(
        self,
        variables: Sequence[tf.Variable],
        layers: Sequence[Any],
        drawn: Mapping[int, tuple[tf.Variable, Any]] = types.MappingProxyType({}),
    ) -> None:
        new, changed = [], []
        for variable, now in zip(variables, _values(variables), strict=True):
            digest = _digest(variable)
            _, before, then = self._seen.get(id(variable), (None, None, None))
            self._seen[id(variable)] = (variable, now, digest)
            if before is not None and _same(before, now) and then in (None, digest):
                continue
            self._given[id(variable)] = now
            (new if before is None else changed).append((variable, now, digest))
        self._resolve(changed)
        known = self._recognise([entry[1:] for entry in new])
        new = [entry for entry, found in zip(new, known, strict=True) if not found]
        new = [
            (variable, (_fingerprint(value), digest))
            for variable, value, digest in new
            if not _is_constant(variable, value)
        ]
        if new and self.initial_weights == "public":
            self.remark(PUBLIC)
            _register([mark for _, mark in new], Lineage(remarks=[PUBLIC]))
            return
        told = _initial(layers, drawn, [variable for variable, _ in new])
        for variable, mark in new:
            if told.get(id(variable), False):
                _register([mark], Lineage())
            else:
                self._note_unknown(variable)

    def _recognise(self, values: Sequence[tuple[np.ndarray, Any]]) -> list[bool]:
        """Adds what is known of these values; says which are known, all of them where all were seen."""
        fingerprints = [_fingerprint(value) for value, _ in values]
        if any(found is not None and found not in _KNOWN for found in fingerprints):
            for training in list(_TRAINING):
                training._make_known()
        known = [_KNOWN.get(fingerprint) for fingerprint in fingerprints]
        for record in {id(entry[0]): entry[0] for entry in known if entry is not None}.values():
            self.absorb(record)
        return [
            entry is not None and (None in (digest, entry[1]) or digest == entry[1])
            for entry, (_, digest) in zip(known, values, strict=True)
        ]

    def _resolve(self, changed: Sequence[tuple[tf.Variable, np.ndarray, Any]]) -> None:
        known = self._recognise([entry[1:] for entry in changed])
        for (variable, value, _), found in zip(changed, known, strict=True):
            if not found and not _is_constant(variable, value):
                self._note_unknown(variable)

    def _note_unknown(self, variable: tf.Variable) -> None:
        if variable.name not in self._unknown:
            self._unknown.add(variable.name)
            _log.warning("%s has weights from elsewhere, whose cost is not known", variable.name)
        self.remark(UNKNOWN)

    def _ask_steps(self) -> None:
        """Looks up what the steps since the last time met instead of what they had left."""
        for steps in self._stepped.values():
            met, lost = steps.what_steps_met()
            self._resolve([(variable, value, None) for variable, value in met])
            if lost:
                self.remark(UNKNOWN)

    def _make_known(self) -> None:
        """Registers what the own steps left last."""
        self._ask_steps()
        record = self.record
        for steps in self._stepped.values():
            left = [
                (
                    _fingerprint(now),
                    self._seen[id(variable)][2] if self._saw(variable, now) else None,
                )
                for variable, now in zip(steps.variables, steps.last_left(), strict=True)
                if not _same(now, self._given[id(variable)])
            ]
            _register(left, record)

    # -- files ----------------------------------------------------------------------------------------

    def file(self) -> dict[str, Any]:
        """What a saved file holds, JSON-able: all that was released, and of which weights what.

        `register_file` reads it.
        """
        self.look()
        record = self.record
        groups: dict[int, tuple[Lineage, list[str]]] = {}
        for _, value, _ in self._seen.values():
            fingerprint = _fingerprint(value)
            if fingerprint is not None:
                known, _ = _KNOWN.get(fingerprint, (record, None))
                groups.setdefault(id(known), (known, []))[1].append(fingerprint)
        weights = [[found, known.get_config()] for known, found in groups.values()]
        found = {"record": record.get_config(), "weights": weights}
        if self.owner is not None:
            found["own"] = self.owner.own_run.get_config()
            found["divisor"] = self.owner.divisor
        return found


def _unpickled(initial_weights: str | None, config: dict[str, Any]) -> LineageTracker:
    found = LineageTracker(initial_weights)
    found._record.absorb(Lineage.from_config(config))
    return found
