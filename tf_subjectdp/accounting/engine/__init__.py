# SPDX-License-Identifier: Apache-2.0
"""From events to epsilon: canonical mechanisms, loss distributions, Renyi divergences."""
