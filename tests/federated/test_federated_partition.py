# SPDX-License-Identifier: Apache-2.0
"""Who holds which row in a simulated federation, and the picture of it.

Statistical tests have a fixed seed and a false-alarm rate of 1e-6 or less each.
"""

import builtins
import subprocess
import sys
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tf_subjectdp.federated import partition
from tf_subjectdp.federated.partition_plot import plot_partition
from tf_subjectdp.sampling import SiloStats

FALSE_ALARM = 1e-6
DRAWN = {
    "uniform": lambda ids, n_silos, seed: partition.uniform(ids, n_silos, seed=seed),
    "power": lambda ids, n_silos, seed: partition.power(ids, n_silos, 3.0, seed=seed),
}
drawn = pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
_IDS = st.lists(st.integers(0, 6), min_size=1, max_size=50)


def bin_masses(n_silos, alpha):
    """Probability of each bin: the integral of alpha x**(alpha - 1) over it."""
    return np.diff((np.arange(n_silos + 1) / n_silos) ** alpha)


def counts_of(ids, silo, n_silos):
    """Items by subject and silo, written out."""
    subjects = list(dict.fromkeys(np.asarray(ids).tolist()))
    table = np.zeros((len(subjects), n_silos), int)
    for one, where in zip(np.asarray(ids).tolist(), silo.tolist(), strict=True):
        table[subjects.index(one), where] += 1
    return table


@drawn
@settings(deadline=None, max_examples=40, derandomize=True)
@given(ids=_IDS, n_silos=st.integers(1, 9), seed=st.integers(0, 2**40))
def test_every_row_has_one_silo_the_same_for_the_same_seed(draw, ids, n_silos, seed):
    silo = draw(ids, n_silos, seed)
    assert silo.dtype == np.int64 and silo.shape == (len(ids),)
    assert silo.min() >= 0 and silo.max() < n_silos
    assert np.array_equal(silo, draw(ids, n_silos, seed))
    names = [f"person {i}" for i in ids]
    assert np.array_equal(silo, draw(names, n_silos, seed)), "who is who does not matter"


@drawn
def test_seeds_differ_none_is_fresh_and_a_generator_moves_on(draw):
    ids = np.arange(400) % 20
    first = draw(ids, 8, 0)
    assert not np.array_equal(first, draw(ids, 8, 1))
    assert not np.array_equal(draw(ids, 8, None), draw(ids, 8, None))
    rng = np.random.default_rng(0)
    one, two = draw(ids, 8, rng), draw(ids, 8, rng)
    assert not np.array_equal(one, two)
    assert np.array_equal(one, draw(ids, 8, np.random.default_rng(0)))


@pytest.mark.parametrize(
    "draw", [DRAWN["uniform"], lambda ids, n, seed: partition.power(ids, n, 1, seed=seed)]
)
def test_uniform_and_alpha_1_spread_each_persons_rows_evenly(draw):
    n_people, n_silos, each = 60, 8, 400
    ids = np.arange(n_people * each) % n_people
    table = counts_of(ids, draw(ids, n_silos, 11), n_silos)
    expected = each / n_silos
    assert expected >= 50, "or chi-square is no good law"
    statistic = ((table - expected) ** 2 / expected).sum()
    p = stats.chi2.sf(statistic, n_people * (n_silos - 1))
    # two-sided: rows dealt out in turn would be too even
    assert min(p, 1 - p) > FALSE_ALARM / 2


@drawn
def test_silos_of_rows_are_independent_so_sizes_of_silos_vary(draw):
    n_silos, each, times = 4, 200, 300
    ids = np.arange(each)  # one row a person
    sizes = np.array([np.bincount(draw(ids, n_silos, s), minlength=n_silos) for s in range(times)])
    statistic = ((sizes - each / n_silos) ** 2 / (each / n_silos)).sum()
    p = stats.chi2.sf(statistic, times * (n_silos - 1))
    assert min(p, 1 - p) > FALSE_ALARM / 2


@pytest.mark.parametrize("alpha", [1.5, 2, 4.0])
def test_a_persons_rows_follow_the_power_distribution_in_an_order_of_their_own(alpha):
    n_silos, each = 4, 200_000
    expected = bin_masses(n_silos, alpha) * each
    assert expected[0] > 700 and np.diff(expected).min() > 10_000, "so that sorting finds the order"
    silo = partition.power(np.repeat([7, 8], each), n_silos, alpha, seed=5)
    for rows in (silo[:each], silo[each:]):
        found = np.sort(np.bincount(rows, minlength=n_silos))
        assert stats.chisquare(found, expected).pvalue > FALSE_ALARM / 2


def test_rows_of_a_person_meet_the_more_often_the_larger_alpha_as_computed():
    n_silos, pairs, alphas = 16, 100_000, (1, 2, 4, 8, 16)
    # Hoeffding: the rate of `pairs` independent pairs is further off with this probability only
    off = np.sqrt(np.log(2 * len(alphas) / FALSE_ALARM) / (2 * pairs))
    ids = np.repeat(np.arange(250), 2 * pairs // 250)
    expected = [(bin_masses(n_silos, alpha) ** 2).sum() for alpha in alphas]
    assert np.diff(expected).min() > 2 * off
    rates = []
    for alpha in alphas:
        one, two = partition.power(ids, n_silos, alpha, seed=3).reshape(pairs, 2).T
        rates.append(np.mean(one == two))
    assert np.abs(np.subtract(rates, expected)).max() < off
    assert np.all(np.diff(rates) > 0)


def test_favourite_silos_differ_by_person_and_all_are_as_likely():
    n_people, n_silos = 3000, 6
    ids = np.repeat(np.arange(n_people), 60)
    # a coin breaks ties, or silos of low number would win them
    table = np.random.default_rng(1).random((n_people, n_silos))
    np.add.at(table, (ids, partition.power(ids, n_silos, 8, seed=9)), 1)
    first, second = np.argsort(-table, axis=1)[:, :2].T
    pairs = np.bincount(first * n_silos + second, minlength=n_silos**2).reshape(n_silos, n_silos)
    unequal = pairs[~np.eye(n_silos, dtype=bool)]
    assert stats.chisquare(unequal).pvalue > FALSE_ALARM


def test_orders_drawn_in_pieces_are_those_drawn_at_once(monkeypatch):
    ids = np.random.default_rng(0).permutation(np.arange(510) % 51)
    at_once = partition.power(ids, 7, 8, seed=2)
    monkeypatch.setattr(partition, "_MOST_CELLS", 49)  # 7 people a piece, 2 in the last
    assert np.array_equal(at_once, partition.power(ids, 7, 8, seed=2))


def test_a_root_that_rounds_to_1_is_in_the_last_bin():
    class Largest(np.random.Generator):
        def random(self, size=None):
            return np.full(size, 1 - 2.0**-53)

    assert (1 - 2.0**-53) ** (1 / 16) == 1.0
    silo = partition.power([1, 1, 1], 4, 16, seed=Largest(np.random.PCG64(0)))
    assert silo.max() < 4 and len(set(silo.tolist())) == 1


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (([1, 2], 0, 2), ValueError, "n_silos is 0: it must be at least 1"),
        (([1, 2], 2.0, 2), TypeError, "n_silos is 2.0"),
        (([1, 2], 3, 0.5), ValueError, "alpha is 0.5: it must be at least 1"),
        (([1, 2], 3, float("nan")), ValueError, "alpha is nan"),
        (([1, 2], 3, float("inf")), ValueError, "alpha is inf"),
        (([1, 2], 3, 10**400), ValueError, "at most 9007199254740992"),
        (([1, 2], 3, "2"), TypeError, "alpha is '2'"),
        (([1, 2], 3, True), TypeError, "alpha is True"),
        (([1, None], 3, 2), ValueError, "row 1 has no subject id"),
        (([1.0, 2.0], 3, 2), TypeError, "subject id"),
    ],
)
def test_power_refuses(arguments, error, words):
    with pytest.raises(error, match=words):
        partition.power(*arguments, seed=0)


@drawn
@pytest.mark.parametrize(("seed", "error"), [(-1, ValueError), ("0", TypeError), (True, TypeError)])
def test_what_is_no_seed_is_refused(draw, seed, error):
    with pytest.raises(error, match="seed is"):
        draw([1, 2], 3, seed)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.lists(st.sampled_from(["north", "south", "b\0", "b", "east"]), min_size=1, max_size=30))
def test_natural_silos_are_those_of_the_column_in_order(column):
    codes, names = partition.natural(column)
    assert codes.dtype == np.int64
    assert [names[code] for code in codes] == column
    assert list(names) == sorted(set(column))


def test_natural_names_are_plain_and_fit_the_stats():
    codes, names = partition.natural(np.array([30, 10, 30], np.int16))
    assert codes.tolist() == [1, 0, 1] and names == (10, 30)
    assert all(type(name) is int for name in names)
    assert type(partition.natural([np.int32(4)])[1][0]) is int
    assert SiloStats.from_ids([1, 2, 1], np.array(names)[codes]).names == names
    with pytest.raises(ValueError, match="row 1 has no silo id .* the id of the silo it belongs"):
        partition.natural(["a", None])


@settings(deadline=None, max_examples=60, derandomize=True)
@given(ids=_IDS, data=st.data())
def test_small_keeps_the_first_people_whole(ids, data):
    people = list(dict.fromkeys(ids))
    n = data.draw(st.integers(1, len(people)))
    mask = partition.small(ids, n)
    assert mask.dtype == bool
    assert mask.tolist() == [one in people[:n] for one in ids]


def test_small_takes_350_and_refuses_fewer_people():
    assert partition.small(np.arange(400)[::-1]).sum() == 350
    with pytest.raises(ValueError, match="n_subjects is 350, .* of 2 subjects: pass at most 2"):
        partition.small([1, 2])
    with pytest.raises(TypeError, match="n_subjects is 1.5"):
        partition.small([1, 2], 1.5)


Pair = namedtuple("Pair", ["left", "right"])


@settings(deadline=None, max_examples=40, derandomize=True)
@given(rows=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=40))
def test_split_gives_every_row_to_its_silo_and_no_other(rows):
    ids, silo = (np.array(column) for column in zip(*rows, strict=True))
    n = len(rows)
    x = {"a": np.arange(2 * n).reshape(n, 2), "b": Pair(np.arange(n), (-np.arange(n),))}
    y = [f"row {i}" for i in range(n)]
    found = partition.split(x, y, ids, silo, names=["u", "v", "w", 7, "z"])
    assert list(found) == ["u", "v", "w", 7, "z"]
    for number, part in enumerate(found.values()):
        where = [i for i in range(n) if silo[i] == number]
        assert isinstance(part, OrderedDict) and list(part) == ["x", "y", "subject_id"]
        assert type(part["x"]) is dict and type(part["x"]["b"]) is Pair
        assert part["x"]["a"].shape == (len(where), 2)
        assert part["x"]["a"].tolist() == [[2 * i, 2 * i + 1] for i in where]
        assert part["x"]["b"].left.tolist() == where
        assert part["x"]["b"].right[0].tolist() == [-i for i in where]
        assert part["y"].tolist() == [f"row {i}" for i in where]
        assert part["subject_id"].tolist() == ids[where].tolist()


def test_split_numbers_silos_copies_rows_and_keeps_ids_apart():
    x = np.arange(4.0)
    found = partition.split(x, x, [b"a", b"a\0", b"c", b"a"], [0, 0, 2, 2])
    assert list(found) == [0, 1, 2] and found[1]["x"].shape == (0,)
    assert found[0]["subject_id"].tolist() == [b"a", b"a\0"]
    found[0]["x"][:] = 9
    assert x.tolist() == [0, 1, 2, 3]
    assert partition.split(x, x, [1, 2, 3, 4], [0] * 4)[0]["subject_id"].dtype == np.int64
    for names in (range(3), np.arange(3), np.array(["u", "v", "w"])):
        found = partition.split(x, x, [1, 2, 3, 4], [0] * 4, names)
        assert list(found) == list(names) and {type(name) for name in found} <= {int, str}


ROWS = np.arange(3)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (
            (ROWS[:2], ROWS, ROWS, ROWS),
            ValueError,
            r"x has shape \(2,\) and there are 3 subject ids",
        ),
        (({"a": (ROWS, 5)}, ROWS, ROWS, ROWS), ValueError, r"x\['a'\]\[1\] has shape \(\)"),
        ((ROWS, None, ROWS, ROWS), ValueError, r"y has shape \(\)"),
        (([[1], [2, 3], [4]], ROWS, ROWS, ROWS), ValueError, "x is no array"),
        ((ROWS, ROWS, ["a", 1, "b"], ROWS), TypeError, "more than one kind"),
        ((ROWS, ROWS, ["a", "", "b"], ROWS), ValueError, "row 1 has no subject id"),
        ((ROWS, ROWS, ROWS, ROWS[:2]), ValueError, r"silo has shape \(2,\)"),
        ((ROWS, ROWS, ROWS, ["a", "b", "c"]), TypeError, "partition.natural"),
        ((ROWS, ROWS, ROWS, ROWS > 0), TypeError, "silo has type bool"),
        ((ROWS, ROWS, ROWS, ROWS - 1), ValueError, "silo runs from -1 to 1, outside 0..1"),
        ((ROWS, ROWS, ROWS, ROWS, ["a", "b"]), ValueError, "silo runs from 0 to 2, outside 0..1"),
        ((ROWS, ROWS, ROWS, ROWS, ["a", "b", "a"]), ValueError, "differ as text"),
        ((ROWS, ROWS, ROWS, ROWS, ["1", 2, 1]), ValueError, "differ as text"),
        ((ROWS, ROWS, ROWS, ROWS, ["a", 1.5, "b"]), TypeError, "a silo is called 1.5"),
        ((ROWS, ROWS, ROWS, ROWS, "abc"), TypeError, "names is the single str"),
    ],
)
def test_split_refuses(arguments, error, words):
    with pytest.raises(error, match=words):
        partition.split(*arguments)


# The picture.


def shares(axes):
    return axes.get_images()[0].get_array()


def test_the_picture_has_the_shares_of_each_subject_sorted_by_their_largest_silo():
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    counts = np.array([[1, 3, 0], [4, 0, 0], [0, 0, 2], [5, 5, 0], [0, 1, 7]])
    subject, silo = np.nonzero(counts)
    times = counts[subject, silo]
    mine = Figure().add_subplot()
    returned = plot_partition(
        np.repeat(subject, times), np.repeat(silo, times), "u v w".split(), ax=mine
    )
    assert returned is mine
    # largest silo: 1, 0, 2, 0 (the first of equals, 5 items), 2
    expected = [[0.5, 0.5, 0], [1, 0, 0], [0.25, 0.75, 0], [0, 0.125, 0.875], [0, 0, 1]]
    assert np.array_equal(shares(mine).filled(0), expected)
    assert np.array_equal(np.ma.getmaskarray(shares(mine)), np.equal(expected, 0))
    assert mine.get_title().startswith("5 subjects in 3 silos, a subject in 1.6 on average")
    assert "not for release" in mine.get_title()
    assert [label.get_text() for label in mine.get_xticklabels()] == ["u", "v", "w"]
    assert mine.get_xlabel() == "silo" and "largest silo" in mine.get_ylabel()
    bar = mine.figure.axes[1]
    assert "share" in bar.get_ylabel()


def test_of_many_subjects_some_are_drawn_and_all_are_counted():
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    ids = np.repeat(np.arange(1000), 4)
    silo = partition.uniform(ids, 40, seed=0)
    axes = plot_partition(ids, silo, range(50), ax=Figure().add_subplot(), most_subjects=30)
    assert shares(axes).shape == (30, 50)
    np.testing.assert_allclose(shares(axes).filled(0).sum(axis=1), 1)
    assert axes.get_images()[0].get_clim() == (0.0, 1.0), "colours mean the same in all pictures"
    largest = shares(axes).filled(0).argmax(axis=1)
    assert np.all(np.diff(largest) >= 0) and len(set(largest.tolist())) > 15
    mean = SiloStats.from_ids(ids, silo).counts.nnz / 1000
    assert axes.get_title().startswith(f"1,000 subjects in 50 silos, a subject in {mean:.3g} on")
    assert "30 of 1,000" in axes.get_ylabel()


def test_long_names_are_slanted_and_cut_and_too_many_become_numbers():
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    names = ["the hospital with a very long name", *(f"hospital {i}" for i in range(7))]
    axes = plot_partition(range(8), range(8), names, ax=Figure().add_subplot())
    labels = axes.get_xticklabels()
    assert labels[0].get_rotation() == 45 and len(labels[0].get_text()) == 24
    many = [f"hospital {i}" for i in range(40)]
    axes = plot_partition(range(40), range(40), many, ax=Figure().add_subplot())
    assert axes.get_xlabel() == "silo, by number"


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="most_subjects is 0"):
        plot_partition([1, 2], [0, 1], most_subjects=0)
    with pytest.raises(TypeError, match="partition.natural"):
        plot_partition([1, 2], ["a", "b"])
    with pytest.raises(ValueError, match="outside 0..0"):
        plot_partition([1, 2], [0, 1], ["a"])


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    usual = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return usual(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=r"tf-subjectdp\[plots\]"):
        plot_partition([1, 2], [0, 1])


def test_partitions_and_ids_import_neither_tensorflow_nor_matplotlib():
    code = (
        "import sys, tf_subjectdp.federated.partition_plot, tf_subjectdp.federated.ids; "
        "sys.exit(any(m in sys.modules for m in ('tensorflow', 'matplotlib')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
