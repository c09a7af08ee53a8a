# SPDX-License-Identifier: Apache-2.0
"""The version of this package: the one place where it is written."""

__version__ = "0.1.0"
