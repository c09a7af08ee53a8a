# SPDX-License-Identifier: Apache-2.0
"""Which element a datum belongs to: k-means clusters, hash buckets, or a function of the user's.

The unit of element-level privacy (Asi, Duchi, Javidi): every datum is in exactly one element, by a
rule that is public, or was paid for. TensorFlow is imported when ids are asked for in a `tf.data`
pipeline, and not before.
"""

from tf_subjectdp.elements.clusters import KMeansElements
from tf_subjectdp.elements.maps import (
    Elements,
    FunctionElements,
    HashElements,
    TensorElements,
    lower_word,
    url_domain,
)
from tf_subjectdp.elements.users import PseudoUsers, pseudo_users

__all__ = [
    "Elements",
    "FunctionElements",
    "HashElements",
    "KMeansElements",
    "PseudoUsers",
    "TensorElements",
    "lower_word",
    "pseudo_users",
    "url_domain",
]
