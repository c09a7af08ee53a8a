# SPDX-License-Identifier: Apache-2.0
"""What is kept of a weight's use, and what follows from it: norms, and a weighted gradient.

The gradient of row i with respect to the weight is never formed where its norm follows from less:

* `ItemGradients`: the gradients themselves, where they are small (biases, scales).
* `Lookups`: the weight is a table, and row i's gradient is zero but for the entries that it looked up.
* `products.Product` and those of `convolution`: the weight multiplied what it received.

Squares of norms are float64 and err upwards (`norms.squares_of_rows`). They bound what the step adds:
where that is another sum in float32 than the one whose norm was taken, what either may lose is a part of
the norm (`longer`).
"""

import abc
from collections.abc import Sequence

import tensorflow as tf

from tf_subjectdp.clipping import norms
from tf_subjectdp.clipping.norm_only.groups import Groups

# A time axis of unknown length counts as this long when costs are weighed.
UNKNOWN_LENGTH = 128
# The least norm of a sum, as a share of the lengths of its parts; see `longer`.
_CANCELLED = 1.0 / 128.0


class Use(abc.ABC):
    """One weight's meeting with the rows; `shape` is the weight's."""

    shape: tf.TensorShape

    @abc.abstractmethod
    def item_squares(self) -> tf.Tensor:
        """Squared norm of each row's gradient, float64 [n]; never below that of what `weighted` adds of
        the row for a weight of 1, but for some roundings that `norms.from_squares` counts."""

    @abc.abstractmethod
    def group_squares(self, groups: Groups) -> tf.Tensor:
        """Squared norm of each group's scaled sum, float64 [count]; the same."""

    @abc.abstractmethod
    def weighted(self, weight: tf.Tensor) -> tf.Tensor:
        """sum_i weight[i] * (row i's gradient): float32 [n] -> float32 [*shape]."""

    def weighted_groups(self, groups: Groups, factors: tf.Tensor) -> tf.Tensor:
        """sum_g factors[g] * (group g's scaled sum): float32 [count] -> float32 [*shape]."""
        return self.weighted(groups.spread(factors))

    def weighted_alone(self, weight: tf.Tensor) -> tf.Tensor:
        """`weighted`, where no norms are asked for beside it."""
        return self.weighted(weight)

    @abc.abstractmethod
    def item_gradients(self) -> tf.Tensor:
        """Every row's gradient, float32 [n, *shape]."""

    @abc.abstractmethod
    def kept_rows(self) -> list[tf.Tensor]:
        """The tensors [n, ...] from which everything follows."""

    def numbers_a_row(self) -> int:
        """How many numbers are kept of one row, about."""
        total = 0
        for tensor in self.kept_rows():
            sizes = [UNKNOWN_LENGTH if size is None else size for size in tensor.shape[1:]]
            total += int(tf.TensorShape(sizes).num_elements())
        return total

    @abc.abstractmethod
    def of(self, kept: Sequence[tf.Tensor]) -> "Use":
        """The same use, with these in place of `kept_rows`."""

    def of_rows(self, keep: tf.Tensor) -> "Use":
        """The same use with the rows where `keep` (bool [n]) is False as if their gradient were 0."""
        return self.of([zeroed(tensor, keep) for tensor in self.kept_rows()])


def as_matrix(tensor: tf.Tensor) -> tf.Tensor:
    """Merges all axes but the first: [n, ...] -> [n, m]."""
    size = tensor.shape[1:].num_elements()
    size = tf.reduce_prod(tf.shape(tensor)[1:]) if size is None else size
    return tf.reshape(tensor, tf.stack([tf.shape(tensor)[0], size]))


def zeroed(tensor: tf.Tensor, keep: tf.Tensor) -> tf.Tensor:
    """[n, ...] with zeros in the rows where `keep` is False, whatever was there."""
    shaped = tf.reshape(keep, [-1] + [1] * (tensor.shape.rank - 1))
    return tf.where(shaped, tensor, tf.zeros_like(tensor))


def longer(
    squares: tf.Tensor,
    lengths: tf.Tensor,
    terms: tf.Tensor | int,
    *,
    sums: int = 1,
    in_blocks: bool = False,
) -> tf.Tensor:
    """Squares of norms of sums of vectors, with what float32 loses in these sums and by them.

    A sum of m numbers, in whatever order, is off by at most m 2^-24 of what their absolute values add up
    to, and a sum of vectors likewise in norm; two more roundings are those of a term. It matters where
    terms cancel: their sum may be 0, its rounding is not. And what cancels passes through the step's own
    float32 sum on its way, where everything else is rounded beside it: so the norm counts as at least
    `_CANCELLED` of the lengths, and no clipped term is made of parts longer than 1 / `_CANCELLED` clip
    norms. (Random parts are not longer than that up to 16,384 of them.)

    Args:
      squares: of the norms of the sums, float64 [n].
      lengths: what the norms of the terms add up to, float64 [n].
      terms: how many there are.
      sums: the norm is taken of one sum and the step makes another: 2 if the first was in float32 too.
      in_blocks: whether a matrix product adds them: in blocks, in which less is lost (b + m / b in place
        of m for blocks of b; 32 sqrt(m) is counted beyond 1024 terms).
    """
    terms = tf.cast(terms, tf.float64)
    roundings = tf.minimum(terms, 32.0 * tf.sqrt(terms)) if in_blocks else terms
    share = norms.ROUNDING * (roundings + 2.0)
    lost = sums * lengths * share * (1.0 + 2.0 * share)
    return tf.square(tf.maximum(tf.sqrt(squares) + lost, _CANCELLED * lengths))


def _squares(tensor: tf.Tensor) -> tf.Tensor:
    # Whether it becomes part of a compiled program is not known to these uses.
    return norms.squares_of_rows(tensor, one_pass=False)


class ItemGradients(Use):
    """Gradients of single rows, [n, *shape]."""

    def __init__(self, gradients: tf.Tensor, shape: tf.TensorShape):
        self.shape = tf.TensorShape(shape)
        self._gradients = as_matrix(tf.cast(gradients, tf.float32))

    def item_squares(self) -> tf.Tensor:
        return _squares(self._gradients)

    def group_squares(self, groups: Groups) -> tf.Tensor:
        scaled = groups.scale[:, tf.newaxis] * self._gradients
        lengths = groups.sums(tf.sqrt(_squares(scaled)))
        return longer(_squares(groups.sums(scaled)), lengths, groups.sizes, sums=2)

    def weighted(self, weight: tf.Tensor) -> tf.Tensor:
        total = tf.matmul(weight[tf.newaxis], self._gradients)
        return tf.reshape(total, self.shape)

    def item_gradients(self) -> tf.Tensor:
        return tf.reshape(self._gradients, [-1, *self.shape])

    def kept_rows(self) -> list[tf.Tensor]:
        return [self._gradients]

    def of(self, kept: Sequence[tf.Tensor]) -> Use:
        return ItemGradients(kept[0], self.shape)


class Lookups(Use):
    """The weight is a table [v, d] of which the rows looked up entries.

    Args:
      ids: integers [n, ...], which entries each row looked up.
      gradient: gradient of the loss at what was found, [n, ..., d].
      shape: [v, d].
    """

    def __init__(self, ids: tf.Tensor, gradient: tf.Tensor, shape: tf.TensorShape):
        self.shape = tf.TensorShape(shape)
        ids = as_matrix(tf.cast(ids, tf.int64))
        # Compilers and accelerators look up something for ids out of range; nothing is learnt there.
        known = (ids >= 0) & (ids < self.shape[0])
        self._ids = tf.where(known, ids, tf.zeros_like(ids))
        flat = tf.shape(ids)
        gradient = tf.reshape(
            tf.cast(gradient, tf.float32), tf.stack([flat[0], flat[1], self.shape[-1]])
        )
        self._gradient = tf.where(known[:, :, tf.newaxis], gradient, tf.zeros_like(gradient))

    def item_squares(self) -> tf.Tensor:
        rows = tf.shape(self._ids)[0]
        return self._squares_of_owners(tf.range(rows), rows, self._gradient)

    def group_squares(self, groups: Groups) -> tf.Tensor:
        scaled = groups.scale[:, tf.newaxis, tf.newaxis] * self._gradient
        return self._squares_of_owners(groups.of_row, groups.count, scaled)

    def _squares_of_owners(self, owner, count, values) -> tf.Tensor:
        """Sums the values of equal (owner, id), and their squares over each owner's ids."""
        rows, length = tf.shape(self._ids)[0], tf.shape(self._ids)[1]
        owner = tf.broadcast_to(owner[:, tf.newaxis], [rows, length])
        key = tf.reshape(tf.cast(owner, tf.int64) * self.shape[0] + self._ids, [-1])
        order = tf.argsort(key)
        key = tf.gather(key, order)
        # Equal keys are neighbours now; number the runs of equal ones.
        begins = tf.cast(tf.not_equal(key[1:], key[:-1]), tf.int32)
        run = tf.concat([[0], tf.cumsum(begins)], 0)
        values = tf.gather(tf.reshape(values, [-1, self.shape[1]]), order)

        def of_runs(terms):
            return tf.math.unsorted_segment_sum(terms, run, rows * length)

        sums, each = (_squares(t) for t in (of_runs(values), values))
        # Of each entry by itself: the norms of its parts, and how many they are.
        squares = longer(sums, of_runs(tf.sqrt(each)), of_runs(tf.ones_like(each)), sums=2)
        owner_of_run = tf.math.unsorted_segment_max(
            tf.gather(tf.reshape(owner, [-1]), order), run, rows * length
        )
        return tf.math.unsorted_segment_sum(squares, owner_of_run, count)

    def weighted(self, weight: tf.Tensor) -> tf.Tensor:
        scaled = weight[:, tf.newaxis, tf.newaxis] * self._gradient
        flat = tf.reshape(scaled, [-1, self.shape[1]])
        return tf.math.unsorted_segment_sum(flat, tf.reshape(self._ids, [-1]), self.shape[0])

    def item_gradients(self) -> tf.Tensor:
        rows = tf.range(tf.shape(self._ids, out_type=tf.int64)[0])
        key = tf.reshape(rows[:, tf.newaxis] * self.shape[0] + self._ids, [-1])
        flat = tf.reshape(self._gradient, [-1, self.shape[1]])
        total = tf.math.unsorted_segment_sum(
            flat, key, tf.shape(self._ids, out_type=tf.int64)[0] * self.shape[0]
        )
        return tf.reshape(total, [-1, *self.shape])

    def kept_rows(self) -> list[tf.Tensor]:
        return [self._gradient]

    def of(self, kept: Sequence[tf.Tensor]) -> Use:
        return Lookups(self._ids, kept[0], self.shape)

    def joined(self, other: "Lookups") -> "Lookups":
        """The use of one table at two places, as one."""
        ids = tf.concat([self._ids, other._ids], axis=1)
        return Lookups(ids, tf.concat([self._gradient, other._gradient], axis=1), self.shape)

    def joins(self, other: Use) -> bool:
        """Whether `joined` can take it."""
        return isinstance(other, Lookups)


def one_use(uses: Sequence[Use]) -> Use:
    """Several uses of one weight as one: joined where their kinds agree, else as item gradients."""
    first, *others = uses
    for other in others:
        if getattr(first, "joins", lambda _: False)(other):
            first = first.joined(other)
        else:
            first = ItemGradients(first.item_gradients() + other.item_gradients(), first.shape)
    return first
