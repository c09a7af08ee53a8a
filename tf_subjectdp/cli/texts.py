# SPDX-License-Identifier: Apache-2.0
"""What `--help` says: the words, their units, the papers."""

MAIN = """\
Differential privacy of a PERSON (subject): all rows of that person, in every silo.
Every epsilon is an upper bound. 'subjectdp COMMAND --help' says more."""

WORDS = """\
words and units:
  item       one training record (row)
  subject    a person: all of their items, in every silo
  silo       one organisation that holds data
  sigma      noise multiplier: noise standard deviation / clip norm, no unit;
             of batchclipping and mixedclipping: noise standard deviation / (2 x clip norm)
  q          probability that one ITEM is in a step's batch, in [0, 1]
  p          probability that one SUBJECT is in a step's batch, in [0, 1]
  r          probability that one ELEMENT of a subject is in a step's batch, in [0, 1]
  element    a cluster of a subject's items (a topic, a word); each item is in exactly one
  k          the most items of one subject in a silo's data (--items-per-subject, --cap-data)
  adjacency  Poisson sampling: adding or removing one unit; one element: replacing, adding or
             removing it; fixed-size batches and shuffling: replacing one in place; userldp with
             Poisson sampling: any change of a silo's data
  A0, A1     adversaries: both see every noised update; A1 also knows in which batch and part
             (batchclipping, mixedclipping) each of the unit's items was. A figure against A1 is
             for replacing them in place and, with Poisson sampling, for adding or removing them"""

PAPERS = """\
papers:
  itemdp           DP-SGD: Abadi et al. 2016, Algorithm 1 (arXiv:1607.00133). Its subject figure is
                   that of groupdp.
  higradavg        Marathe, Kanani, Peterson, Steele: HiGradAvgDP, 2022 text (arXiv:2206.03617),
                   Algorithm 1. Rate 1-(1-q)^k; published were q (too small) and k q (loose).
  groupdp          the same: LocalGroupDP, 2023 text, Algorithm 1 (LocalSubDP, 2022), with constant
                   noise: mixture of Gaussians, Choquette-Choo et al. (arXiv:2310.15526).
  subjectdp        user-level DP-SGD: McMahan et al. 2018 (arXiv:1710.06963).
  userldp          Marathe et al., both texts; sensitivity 2C at every step (published: C).
  elementdp        Asi, Duchi, Javidi (arXiv:1912.04042), Algorithm 1. Against Proposition 2, the
                   sampling of subjects does not amplify the promise to an element; that of
                   elements and items does. element-subject is its figure for a subject.
  batchclipping, mixedclipping
                   van Dijk, Nguyen, Nguyen, Nguyen (arXiv:2212.05796), Algorithm 1: the result of
                   the whole batch, or of each of its parts, is clipped. Items sampled.
  centralgroup, centralhigradavg
                   CentralGroupDP (CentralSubDP) of Marathe et al.: the server adds noise once, to
                   the sum over all silos."""

JSON = """\
--json prints one object. A number that is infinite is null there, with "<its name>_infinite": true
beside it. Exit status: 0, or 2 with one line on standard error for bad input."""

EPSILON = (
    "what a run promises",
    """\
The epsilon of a run, what it protects, and why. Rates come as --q or --p, or from --batch and
--items (q = B/N), from --expected-subjects and --subjects (p = S/N), or from a table (--ids).

  subjectdp epsilon --algorithm higradavg --batch 512 --items 31700 --items-per-subject 145 \\
      --noise 60 --epochs 100 --delta 1e-5
  subjectdp epsilon --algorithm elementdp --q 0.01 --items-per-element 5 --noise 2 --steps 200 \\
      --delta 1e-5
  subjectdp epsilon --algorithm batchclipping --sampling shuffle --batch 500 --items 50000 \\
      --items-per-subject 20 --noise 8 --epochs 10 --delta 1e-5""",
)

NOISE = (
    "the noise that a promise needs",
    """\
The smallest noise multiplier sigma (noise standard deviation / clip norm; of batchclipping and
mixedclipping / (2 x clip norm)) with which a run keeps the budget.

  subjectdp noise --algorithm groupdp --q 0.016 --items-per-subject 145 --cap 5 \\
      --steps 6200 --epsilon 4 --delta 1e-5""",
)

ROUNDS = (
    "how long a run may be",
    """\
The largest number of rounds (or steps) that keeps the budget at the noise given. With silos it is
shown beside the rule R/sqrt(s) of Marathe et al. (horizontal composition, both texts), which
overspends: over s silos R s steps compose, so about R/s rounds are left.

  subjectdp rounds --algorithm itemdp --unit subject --q 0.016 --items-per-subject 10 --noise 13 \\
      --silos 16 --steps-per-round 62 --epsilon 4 --delta 1e-5""",
)

PLAN = (
    "a plan: algorithm, sampling, length and promise together",
    """\
The plan that tf_subjectdp.plan(...) makes from the same choices, as a table. Say --epsilon with
--delta, or --noise.

  subjectdp plan --algorithm higradavg --batch 256 --ids visits.csv --column patient_id \\
      --epochs 10 --epsilon 4 --delta 1e-5 --save plan.json""",
)

STATEMENT = (
    "the privacy statement of a plan",
    """\
What a run protects, from whom and what not, in plain sentences. The epsilon is computed anew from
the plan's constants, never read from its file. A PrivacyLedger's file holds the steps taken, the
number of their plan, and the runs whose weights came in; it needs --plan beside it, whose steps
they are. A saved PrivateModel says what its own privacy_statement() says.

  subjectdp statement --plan plan.json --steps-taken 1200
  subjectdp statement --model private.keras""",
)

COMPARE = (
    "every algorithm at the same data and budget",
    """\
One table: the noise that each algorithm needs for the same budget on the same data, that noise on
the averaged step relative to the clip norm (sigma / divisor), and what a subject is then promised.
The first row is ItemDP with the noise that is enough for single ITEMS. With --silo-column each
silo has its own N, q = B/N, k and steps; a subject's silos compose (the adversary sees every
update).

  subjectdp compare --ids visits.csv --column patient_id --silo-column hospital \\
      --epsilon 4 --delta 1e-5 --batch 64 --epochs 10""",
)
