# SPDX-License-Identifier: Apache-2.0
"""What the papers publish, behind `accounting.paper_rules`, `study` and `utility`.

Knows events and the three questions; nobody sets noise by it.
"""
