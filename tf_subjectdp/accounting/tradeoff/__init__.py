# SPDX-License-Identifier: Apache-2.0
"""Trade-off curves and the laws of batch clipping, behind `accounting.fdp`.

Knows the engine's closed forms only.
"""
