# SPDX-License-Identifier: Apache-2.0
"""One person in several silos: who sees what, which silos cost most, every person's own figure."""
