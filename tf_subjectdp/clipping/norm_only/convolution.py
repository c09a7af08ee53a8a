# SPDX-License-Identifier: Apache-2.0
"""Uses of convolution kernels.

A convolution's gradient for one image is a matrix product of its patches with the gradient at its
output. The patches are never all held at once: they are laid out along the window's width, and the
window's height is walked through by shifted views; of images, a block at a time.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_subjectdp.clipping import norms
from tf_subjectdp.clipping.norm_only.groups import Groups
from tf_subjectdp.clipping.norm_only.products import Product, product
from tf_subjectdp.clipping.norm_only.uses import ItemGradients, Use

# Images a block: what they need at once stays in memory that is used again, not new at each step.
_BLOCK_ELEMENTS = 16 * 2**20
_LARGEST_BLOCK = 128


class Window(NamedTuple):
    """How a kernel moves over images, all sizes (height, width); over volumes, (depth, height, width)."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    output: tuple[int, ...]

    @classmethod
    def of(cls, inputs: tf.Tensor, kernel_shape: Any, *, strides, padding, dilations=(1, 1)):
        """The window of `tf.nn.convolution` with these options; ValueError if a size is unknown."""
        sizes = inputs.shape[1:-1]
        if None in tuple(sizes):
            raise ValueError(f"images of shape {inputs.shape[1:]} have no fixed size")
        before, after, output = [], [], []
        for size, kernel, stride, dilation in zip(
            sizes, kernel_shape[:-2], strides, dilations, strict=True
        ):
            extent = (kernel - 1) * dilation + 1
            if padding.upper() == "SAME":
                count = -(-size // stride)
                missing = max((count - 1) * stride + extent - size, 0)
            else:
                count, missing = (size - extent) // stride + 1, 0
            before.append(missing // 2)
            after.append(missing - missing // 2)
            output.append(count)
        kernel = tuple(int(k) for k in kernel_shape[:-2])
        return cls(
            kernel, tuple(strides), tuple(dilations), tuple(before), tuple(after), tuple(output)
        )

    @property
    def positions(self) -> int:
        """Places at which the kernel is applied to an image."""
        return math.prod(self.output)


def _padded(images: tf.Tensor, window: Window) -> tf.Tensor:
    sides = [[b, a] for b, a in zip(window.before, window.after, strict=True)]
    return tf.pad(images, [[0, 0], *sides, [0, 0]])


def _along(images: tf.Tensor, window: Window, axis: int, number: int) -> tf.Tensor:
    """What the `number`-th entry of the kernel's height (axis 0), width (axis 1) or so meets."""
    begin = number * window.dilations[axis]
    stride = window.strides[axis]
    end = begin + (window.output[axis] - 1) * stride + 1
    return images[(slice(None),) * (axis + 1) + (slice(begin, end, stride),)]


def _beside(images: tf.Tensor, window: Window, axis: int) -> tf.Tensor:
    """What all entries along one of the kernel's axes meet, side by side in the last axis."""
    return tf.concat([_along(images, window, axis, i) for i in range(window.kernel[axis])], -1)


def _row_patches(images: tf.Tensor, window: Window) -> tf.Tensor:
    """[n, h, w, c] -> [n, padded h, output w, kernel w * c]."""
    return _beside(_padded(images, window), window, 1)


def patches(images: tf.Tensor, window: Window) -> tf.Tensor:
    """Every patch as a vector, [n, positions, kernel h * kernel w * c]."""
    found = _padded(images, window)
    for axis in reversed(range(len(window.kernel))):
        found = _beside(found, window, axis)
    return tf.reshape(found, [-1, window.positions, found.shape[-1]])


def image_gradients(images: tf.Tensor, gradient: tf.Tensor, window: Window) -> tf.Tensor:
    """Gradients of single images: [n, h, w, c], [n, h', w', o] -> [n, kernel h, kernel w * c, o]."""
    wide = _row_patches(images, window)
    width = wide.shape[-1]
    flat = tf.reshape(gradient, [-1, window.positions, gradient.shape[-1]])
    rows = []
    for i in range(window.kernel[0]):
        met = tf.reshape(_along(wide, window, 0, i), [-1, window.positions, width])
        rows.append(tf.matmul(met, flat, transpose_a=True))
    return tf.stack(rows, axis=1)


def _sum_over_images(images, gradient, weight, window: Window, shape: tf.TensorShape) -> tf.Tensor:
    """The weighted sum of the images' gradients, none of them formed; without dilation."""
    sides = zip(window.before, window.after, strict=True)
    total = tf.raw_ops.Conv2DBackpropFilter(
        input=images,
        filter_sizes=[*window.kernel, *shape.as_list()[-2:]],
        out_backprop=gradient * weight[:, tf.newaxis, tf.newaxis, tf.newaxis],
        strides=[1, *window.strides, 1],
        padding="EXPLICIT",
        explicit_paddings=[0, 0, *[size for side in sides for size in side], 0, 0],
    )
    return tf.reshape(total, shape)


class ImageGradients(Use):
    """A kernel's gradients for single images, a block of images at a time."""

    def __init__(self, images, gradient, shape, window: Window):
        self.shape = tf.TensorShape(shape)
        self._images = tf.cast(images, tf.float32)
        self._gradient = tf.cast(gradient, tf.float32)
        self._window = window
        each = window.positions * window.kernel[1] * int(images.shape[-1]) * 2
        self._block = max(1, min(_LARGEST_BLOCK, _BLOCK_ELEMENTS // (2 * each)))
        self._blocks: tuple[tf.TensorArray, tf.Tensor] | None = None
        self._sums: tuple[Groups, tf.Tensor] | None = None

    @property
    def _number(self) -> tf.Tensor:
        """How many blocks."""
        return (tf.shape(self._images)[0] + self._block - 1) // self._block

    def _walk(self, body, *carried):
        """Calls body(block's number, its slice of the rows, its gradients [b, weights], *carried)."""

        def step(at, *carried):
            rows = slice(at * self._block, (at + 1) * self._block)
            made = image_gradients(self._images[rows], self._gradient[rows], self._window)
            made = tf.reshape(made, [-1, self.shape.num_elements()])
            return at + 1, *body(at, rows, made, *carried)

        number = self._number
        _, *carried = tf.while_loop(
            lambda at, *_: at < number, step, (tf.constant(0), *carried), parallel_iterations=1
        )
        return carried

    def _made(self) -> tuple[tf.TensorArray, tf.Tensor]:
        """The blocks' gradients, and all squared norms [n]; made once."""
        if self._blocks is None:

            def body(at, rows, made, blocks, squares):
                del rows
                return blocks.write(at, made), squares.write(at, norms.squares_of_rows(made))

            size = self.shape.num_elements()
            blocks, squares = (
                tf.TensorArray(
                    dtype, self._number, element_shape=shape, clear_after_read=False,
                    infer_shape=False,
                )
                for dtype, shape in ((tf.float32, [None, size]), (tf.float64, [None]))
            )  # fmt: skip
            blocks, squares = self._walk(body, blocks, squares)
            self._blocks = blocks, squares.concat()
        return self._blocks

    def _sums_of_groups(self, groups: Groups) -> tf.Tensor:
        """The scaled sum of each group's gradients, [count, weights]; made once, and alone kept."""
        if self._sums is None or self._sums[0] is not groups:

            def body(at, rows, made, sums):
                del at
                made *= groups.scale[rows, tf.newaxis]
                return (tf.tensor_scatter_nd_add(sums, groups.of_row[rows, tf.newaxis], made),)

            sums = tf.zeros(tf.stack([groups.count, self.shape.num_elements()]))
            (sums,) = self._walk(body, sums)
            self._sums = groups, sums
        return self._sums[1]

    def item_squares(self) -> tf.Tensor:
        return self._made()[1]

    def group_squares(self, groups: Groups) -> tf.Tensor:
        return norms.squares_of_rows(self._sums_of_groups(groups))

    def weighted_groups(self, groups: Groups, factors: tf.Tensor) -> tf.Tensor:
        total = tf.matmul(factors[tf.newaxis], self._sums_of_groups(groups))
        return tf.reshape(total, self.shape)

    def weighted(self, weight: tf.Tensor) -> tf.Tensor:
        number, blocks = self._number, self._made()[0]

        def body(at, total):
            part = weight[at * self._block : (at + 1) * self._block]
            return at + 1, total + tf.matmul(part[tf.newaxis], blocks.read(at))

        _, total = tf.while_loop(
            lambda at, _: at < number,
            body,
            (tf.constant(0), tf.zeros([1, self.shape.num_elements()])),
            parallel_iterations=1,
        )
        return tf.reshape(total, self.shape)

    def weighted_alone(self, weight: tf.Tensor) -> tf.Tensor:
        if max(self._window.dilations) > 1:
            return self.weighted(weight)
        return _sum_over_images(self._images, self._gradient, weight, self._window, self.shape)

    def item_gradients(self) -> tf.Tensor:
        return tf.reshape(self._made()[0].concat(), [-1, *self.shape])

    def kept_rows(self) -> list[tf.Tensor]:
        return [self._images, self._gradient]

    def numbers_a_row(self) -> int:
        return super().numbers_a_row() + self.shape.num_elements()

    def of(self, kept: Sequence[tf.Tensor]) -> Use:
        return ImageGradients(*kept, self.shape, self._window)


class PatchProduct(Product):
    """A kernel larger than the pairs of its positions: norms from patches, the sum from images."""

    def __init__(self, images, gradient, shape, window: Window, *, whole: bool = False):
        flat = tf.reshape(gradient, [-1, window.positions, gradient.shape[-1]])
        super().__init__(patches(images, window), flat, shape, whole=whole)
        self._kept = [tf.cast(images, tf.float32), tf.cast(gradient, tf.float32)]
        self._window = window

    def weighted(self, weight: tf.Tensor) -> tf.Tensor:
        return _sum_over_images(*self._kept, weight, self._window, self.shape)

    def kept_rows(self) -> list[tf.Tensor]:
        return self._kept

    def numbers_a_row(self) -> int:
        return super().numbers_a_row() + int(self._received.shape[1:].num_elements())

    def of(self, kept: Sequence[tf.Tensor]) -> Product:
        return PatchProduct(*kept, self.shape, self._window, whole=self._whole)

    def joined(self, other: Product) -> Product:
        plain = Product(self._received, self._gradient, self.shape, whole=self._whole)
        return plain.joined(other)


def use(
    images: tf.Tensor, gradient: tf.Tensor, shape: Any, window: Window, *, whole: bool = False
) -> Use:
    """The use of a kernel [h, w, c, o] or [w, c, o], in the form that costs less to take the norm of.

    `whole` makes all images' gradients in one go, as a compiled program needs it.
    """
    inner = window.kernel[0] * window.kernel[1] * int(shape[-2])
    length, outer = window.positions, int(shape[-1])
    if length * (inner + outer) < inner * outer and max(window.dilations) == 1:
        return PatchProduct(images, gradient, shape, window, whole=whole)
    if whole:
        images, gradient = tf.cast(images, tf.float32), tf.cast(gradient, tf.float32)
        return ItemGradients(image_gradients(images, gradient, window), shape)
    return ImageGradients(images, gradient, shape, window)


def use_of_patches(
    images: tf.Tensor,
    gradient: tf.Tensor,
    shape: Any,
    window: Window,
    groups: int,
    *,
    whole: bool = False,
) -> Use:
    """The use of a kernel [..., c / groups, o] over images, sequences or volumes of any rank, each group
    of channels alone; all patches are held."""
    parts = []
    for met, given in zip(
        tf.split(images, groups, -1), tf.split(gradient, groups, -1), strict=True
    ):
        flat = tf.reshape(given, [-1, window.positions, given.shape[-1]])
        parts.append((patches(met, window), flat))
    if groups == 1:
        return product(*parts[0], shape, whole=whole)
    each = [Product(*part, [*shape[:-1], shape[-1] // groups]).item_gradients() for part in parts]
    return ItemGradients(tf.concat(each, -1), shape)


def depthwise_use(images: tf.Tensor, gradient: tf.Tensor, shape: Any, window: Window) -> Use:
    """The use of a kernel [h, w, c, m] or [w, c, m] that convolves every channel alone."""
    images, gradient = tf.cast(images, tf.float32), tf.cast(gradient, tf.float32)
    channels, multiplier = int(shape[-2]), int(shape[-1])
    gradient = tf.reshape(gradient, [-1, *window.output, channels, multiplier])
    padded = _padded(images, window)
    entries = []
    for i in range(window.kernel[0]):
        for j in range(window.kernel[1]):
            met = _along(_along(padded, window, 0, i), window, 1, j)
            entries.append(tf.reduce_sum(met[..., tf.newaxis] * gradient, axis=[1, 2]))
    return ItemGradients(tf.stack(entries, axis=1), shape)
