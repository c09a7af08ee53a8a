# SPDX-License-Identifier: Apache-2.0
"""The papers' rules for noise and rounds, and what they really give, computed anew.

    python examples/published_rules.py             # both tables, about a minute
    python examples/published_rules.py --quick     # without the rows of millions of steps

No TensorFlow, no data: the accountant alone. The first table has the settings of the experiments
(16 silos, target epsilon 4), the second each published rule on one case.
"""

import argparse

from tf_subjectdp.accounting import study


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="the FEMNIST-like column only")
    chosen = parser.parse_args(arguments)
    settings = (
        (study.FEMNIST_LIKE,) if chosen.quick else (study.FEMNIST_LIKE, study.SHAKESPEARE_LIKE)
    )
    rows = study.study_rows(settings)
    print(study.study_markdown(rows, names=[setting.name for setting in settings]))
    print(study.rule_markdown())


if __name__ == "__main__":
    main()
