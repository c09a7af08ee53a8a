# SPDX-License-Identifier: Apache-2.0
"""Rules of Keras's layers that multiply, convolve, look up, scale and shift.

Each is the layer's forward pass in terms of a `Record`. Layers without weights need no rule: that
they treat rows one by one is read off the graph.
"""

from typing import Any

import tensorflow as tf

from tf_subjectdp.clipping.norm_only.record import NoRule, Record
from tf_subjectdp.clipping.norm_only.rules import register_norm_rule

_layers = tf.keras.layers


def _plain(layer: Any) -> None:
    """Refuses what Keras 3 can do to a kernel after the layer was made."""
    if getattr(layer, "lora_enabled", False) or getattr(layer, "quantization_mode", None):
        raise NoRule("its kernel is quantised or has a low-rank addition")


def _activated(layer: Any, outputs: tf.Tensor) -> tf.Tensor:
    activation = getattr(layer, "activation", None)
    if activation in (tf.keras.activations.swish, tf.nn.silu):
        # TensorFlow's has a gradient of its own, which saves memory and is not looked into.
        return outputs * tf.sigmoid(outputs)
    return outputs if activation is None else activation(outputs)


@register_norm_rule(_layers.Dense)
def dense(layer: Any, record: Record, inputs: tf.Tensor, **_: Any) -> tf.Tensor:
    """y = activation(x W + b), x of any rank."""
    _plain(layer)
    if not isinstance(inputs, tf.Tensor):
        raise NoRule("its inputs are sparse or ragged")
    inputs = tf.cast(inputs, layer.compute_dtype)
    outputs = record.matmul(inputs, layer.kernel)
    if layer.use_bias:
        outputs = record.bias(outputs, layer.bias)
    return _activated(layer, outputs)


@register_norm_rule(_layers.EinsumDense)
def einsum_dense(layer: Any, record: Record, inputs: tf.Tensor, **_: Any) -> tf.Tensor:
    """y = activation(einsum(x, W) + b), as in attention; the first letter stands for the rows."""
    _plain(layer)
    left, output = layer.equation.replace(" ", "").split("->")
    received, kernel = left.split(",")
    letters = received + kernel + output
    if not letters.isalpha() or received[0] != output[0] or received[0] in kernel:
        raise NoRule(f"its equation {layer.equation!r} does not begin with the rows")
    value = record.value(layer.kernel, inputs.dtype)
    outputs = tf.einsum(layer.equation, inputs, value)
    summed = [c for c in received if c in kernel and c not in output]
    made = [c for c in output if c in kernel and c not in received]
    places = [c for c in output[1:] if c in received and c not in kernel]
    known = [set(received), set(kernel), set(output)]
    alone = [c for c in known[0] | known[1] if sum(c in letters for letters in known) == 1]
    if alone:
        raise NoRule(f"its equation {layer.equation!r} sums {alone} of one factor alone")
    if kernel == "".join(summed + made):
        turned = _turned(inputs, received, received[0], places, summed)
        record.declare([inputs], [turned, outputs])
        record.product(
            layer.kernel, turned, outputs, lambda d: _turned(d, output, output[0], places, made)
        )
    else:
        equation = f"{received},{output}->{received[0]}{kernel}"

        def gradients(d):
            return tf.einsum(equation, tf.cast(inputs, tf.float32), tf.cast(d, tf.float32))

        outputs = record.item_gradients(layer.kernel, [inputs], outputs, gradients)
    if layer.bias is not None:
        outputs = record.bias(outputs, layer.bias)
    return _activated(layer, outputs)


def _turned(tensor, letters: str, rows: str, places: list[str], inner: list[str]) -> tf.Tensor:
    """Brings the axes into the order rows, places, inner, and merges each kind: [n, t, i]."""
    axes = [letters.index(c) for c in [rows, *places, *inner]]
    moved = tf.transpose(tensor, axes)
    shape = moved.shape
    first, last = shape[1 : 1 + len(places)], shape[1 + len(places) :]
    width = last.num_elements()
    if width is None:
        raise NoRule(f"axes {inner} have no fixed size")
    return tf.reshape(moved, [-1, *([first.num_elements() or -1] if places else []), width])


@register_norm_rule(_layers.Conv2D)
def conv2d(layer: Any, record: Record, inputs: tf.Tensor) -> tf.Tensor:
    """y = activation(x * W + b) over images."""
    inputs, options = _images(layer, inputs)
    outputs = record.convolution(inputs, layer.kernel, **options)
    return _finished(layer, record, outputs)


@register_norm_rule(_layers.Conv1D)
def conv1d(layer: Any, record: Record, inputs: tf.Tensor) -> tf.Tensor:
    """y = activation(x * W + b) over sequences: images of height 1."""
    inputs, options = _sequences(layer, inputs)
    outputs = record.convolution(inputs, layer.kernel, **options)
    return _finished(layer, record, outputs[:, 0])


@register_norm_rule(_layers.Conv3D)
def conv3d(layer: Any, record: Record, inputs: tf.Tensor) -> tf.Tensor:
    """y = activation(x * W + b) over volumes."""
    inputs, options = _images(layer, inputs, rank=5)
    outputs = record.convolution(inputs, layer.kernel, **options)
    return _finished(layer, record, outputs)


@register_norm_rule(_layers.DepthwiseConv2D)
def depthwise_conv2d(layer: Any, record: Record, inputs: tf.Tensor) -> tf.Tensor:
    """Every channel convolved alone."""
    inputs, options = _images(layer, inputs)
    outputs = record.depthwise_convolution(inputs, _depthwise_kernel(layer), **options)
    return _finished(layer, record, outputs)


@register_norm_rule(_layers.DepthwiseConv1D)
def depthwise_conv1d(layer: Any, record: Record, inputs: tf.Tensor) -> tf.Tensor:
    """Every channel of a sequence convolved alone: images of height 1."""
    inputs, options = _sequences(layer, inputs)
    outputs = record.depthwise_convolution(inputs, _depthwise_kernel(layer), **options)
    return _finished(layer, record, outputs[:, 0])


@register_norm_rule(_layers.SeparableConv2D)
def separable_conv2d(layer: Any, record: Record, inputs: tf.Tensor) -> tf.Tensor:
    """Every channel convolved alone, then a convolution of size 1."""
    inputs, options = _images(layer, inputs)
    outputs = _separable(layer, record, inputs, options)
    return _finished(layer, record, outputs)


@register_norm_rule(_layers.SeparableConv1D)
def separable_conv1d(layer: Any, record: Record, inputs: tf.Tensor) -> tf.Tensor:
    """As SeparableConv2D over sequences: images of height 1."""
    inputs, options = _sequences(layer, inputs)
    outputs = _separable(layer, record, inputs, options)
    return _finished(layer, record, outputs[:, 0])


def _separable(layer, record, inputs, options) -> tf.Tensor:
    outputs = record.depthwise_convolution(inputs, layer.depthwise_kernel, **options)
    return record.convolution(
        outputs, layer.pointwise_kernel, strides=(1, 1), padding="VALID", dilations=(1, 1)
    )


def _depthwise_kernel(layer: Any) -> Any:
    kernel = getattr(layer, "depthwise_kernel", None)
    return layer.kernel if kernel is None else kernel


def _images(layer: Any, inputs: tf.Tensor, rank: int = 4) -> tuple[tf.Tensor, dict[str, Any]]:
    """What a layer convolves, and the options of the convolution."""
    _plain(layer)
    if layer.data_format != "channels_last":
        raise NoRule(f"data_format={layer.data_format!r}")
    if inputs.shape.rank != rank:
        raise NoRule(f"inputs of shape {inputs.shape}")
    if layer.padding not in ("same", "valid", "causal"):
        raise NoRule(f"padding={layer.padding!r}")
    strides, dilations = tuple(layer.strides), tuple(layer.dilation_rate)
    if max(strides) > 1 and max(dilations) > 1:
        raise NoRule(f"strides={strides} and dilation_rate={dilations}")
    return inputs, {"strides": strides, "padding": layer.padding.upper(), "dilations": dilations}


def _sequences(layer: Any, inputs: tf.Tensor) -> tuple[tf.Tensor, dict[str, Any]]:
    """The same of a layer over sequences, as images of height 1."""
    inputs, options = _images(layer, inputs, rank=3)
    (stride,), (dilation,) = options["strides"], options["dilations"]
    padding = options["padding"]
    if padding == "CAUSAL":
        before = (layer.kernel_size[0] - 1) * dilation
        inputs, padding = tf.pad(inputs, [[0, 0], [before, 0], [0, 0]]), "VALID"
    # TensorFlow's depthwise convolutions want equal strides.
    return inputs[:, tf.newaxis], {
        "strides": (stride, stride),
        "padding": padding,
        "dilations": (1, dilation),
    }


def _finished(layer: Any, record: Record, outputs: tf.Tensor) -> tf.Tensor:
    if layer.use_bias:
        outputs = record.bias(outputs, layer.bias)
    return _activated(layer, outputs)


def _known_size(inputs: tf.Tensor) -> None:
    if None in tuple(inputs.shape[1:]):
        raise NoRule(f"inputs of shape {inputs.shape[1:]} have no fixed size")


@register_norm_rule(_layers.Embedding)
def embedding(layer: Any, record: Record, inputs: tf.Tensor, **_: Any) -> tf.Tensor:
    """Entries of a table."""
    _plain(layer)
    if getattr(layer, "sparse", False) or isinstance(inputs, (tf.SparseTensor, tf.RaggedTensor)):
        raise NoRule("its inputs are sparse or ragged")
    ids = inputs if inputs.dtype in (tf.int32, tf.int64) else tf.cast(inputs, tf.int32)
    return record.lookup(ids, layer.embeddings, tf.as_dtype(layer.compute_dtype))


@register_norm_rule(_layers.LayerNormalization)
def layer_normalization(layer: Any, record: Record, inputs: tf.Tensor, **_: Any) -> tf.Tensor:
    """y = gamma (x - mean) / sqrt(variance + epsilon) + beta over the last axes of a row."""
    if getattr(layer, "rms_scaling", False):
        raise NoRule("rms_scaling=True")
    rank = inputs.shape.rank
    axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
    axes = [axis % rank for axis in axes]
    if axes != list(range(rank - len(axes), rank)) or 0 in axes:
        raise NoRule(f"axis={layer.axis!r} are not the last axes")
    wide = _at_least_float32(inputs)
    mean, variance = tf.nn.moments(wide, axes, keepdims=True)
    outputs = (wide - mean) * tf.math.rsqrt(variance + layer.epsilon)
    return tf.cast(_scaled_and_shifted(layer, record, outputs), layer.compute_dtype)


@register_norm_rule(_layers.GroupNormalization)
def group_normalization(layer: Any, record: Record, inputs: tf.Tensor, **_: Any) -> tf.Tensor:
    """As LayerNormalization, over the places and the channels of one group of channels."""
    rank = inputs.shape.rank
    if layer.axis not in (-1, rank - 1) or rank < 3:
        raise NoRule(f"axis={layer.axis!r} is not the last axis")
    _known_size(inputs)
    channels = int(inputs.shape[-1])
    # Keras 2 keeps -1 for "each channel alone" and replaces it when the layer is built.
    groups = channels if layer.groups == -1 else layer.groups
    wide = _at_least_float32(inputs)
    split = tf.reshape(wide, [-1, *inputs.shape[1:-1], groups, channels // groups])
    axes = [*range(1, rank - 1), rank]
    mean, variance = tf.nn.moments(split, axes, keepdims=True)
    outputs = (split - mean) * tf.math.rsqrt(variance + layer.epsilon)
    outputs = tf.reshape(outputs, [-1, *inputs.shape[1:]])
    return tf.cast(_scaled_and_shifted(layer, record, outputs), layer.compute_dtype)


def _at_least_float32(inputs: tf.Tensor) -> tf.Tensor:
    return inputs if inputs.dtype == tf.float64 else tf.cast(inputs, tf.float32)


def _scaled_and_shifted(layer: Any, record: Record, outputs: tf.Tensor) -> tf.Tensor:
    if layer.scale:
        outputs = record.scale(outputs, layer.gamma)
    if layer.center:
        outputs = record.bias(outputs, layer.beta)
    return outputs


@register_norm_rule(_layers.PReLU)
def prelu(layer: Any, record: Record, inputs: tf.Tensor) -> tf.Tensor:
    """y = relu(x) - alpha relu(-x)."""
    _known_size(inputs)
    return tf.nn.relu(inputs) - record.scale(tf.nn.relu(-inputs), layer.alpha)
