# SPDX-License-Identifier: Apache-2.0
"""`python -m tf_subjectdp`: the command `subjectdp`."""

import sys

from tf_subjectdp.cli import main

if __name__ == "__main__":
    sys.exit(main())
